// What BERT's tokenizers ask about characters: the answers of Unicode in one version, see unicode_table.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace attnport::reader::unicode {

/// What a tokenizer does with a character. A `Mark` (category Mn) may change places in decomposed text; a `FixedMark`
/// (Mn too) may not, and what stands at its two sides does not pass it.
enum class Kind : std::uint8_t { Other, Removed, Punctuation, Mark, FixedMark };

[[nodiscard]] Kind kind(char32_t letter) noexcept;

/// The text in canonical decomposition (NFD: The Unicode Standard, 3.11) without its nonspacing marks.
[[nodiscard]] std::u32string without_marks(std::u32string_view text);

/// The text in lower case, one character at a time: a sigma is the same one everywhere in a word.
[[nodiscard]] std::u32string lower_case(std::u32string_view text);

// The tables, made by tools/make_unicode_table.py. Rows are in code point order.

struct KindRange {
    char32_t first;
    char32_t last;
    Kind kind;
};

/// Characters that are no `Mark` and have a canonical combining class.
struct OrderRange {
    char32_t first;
    char32_t last;
    std::uint8_t order;
};

/// Every character from first to last, or every second one (`step`), has its lower case at this distance.
struct LowerRange {
    char32_t first;
    char32_t last;
    std::uint8_t step;
    std::int32_t distance;
};

/// A character and the `count` ones that stand for it.
struct Letters {
    char32_t first;
    std::uint8_t count;
    std::array<char32_t, 4> parts;
};

/// Characters that one other stands for each: that of the first is the one `at` this place of `replacements`.
struct Run {
    char32_t first;
    std::uint16_t count;
    std::uint16_t at;
};

template <class T> struct Rows {
    const T* rows;
    std::size_t count;

    [[nodiscard]] const T* begin() const noexcept { return rows; }
    [[nodiscard]] const T* end() const noexcept { return rows + count; }
};

extern const Rows<KindRange> kinds;
extern const Rows<OrderRange> orders;
/// Full canonical decompositions without what is a `Mark`; those of one character are in `replaced`, and Hangul's are
/// computed.
extern const Rows<Letters> decompositions;
extern const Rows<Run> replaced;
extern const Rows<char32_t> replacements;
extern const Rows<LowerRange> lower;
extern const Rows<Letters> lower_several;

}  // namespace attnport::reader::unicode
