// Unicode's data as far as BERT's tokenizers ask for it; unicode.hpp has the questions. Rows are in code point order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace attnport::reader::unicode {

/// What a tokenizer does with a character. A `Mark` (category Mn) may change places in decomposed text; a `FixedMark`
/// (Mn too) may not, and what stands at its two sides does not pass it.
enum class Kind : std::uint8_t { Other, Removed, Punctuation, Mark, FixedMark };

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

template <class T> struct Rows {
    const T* rows;
    std::size_t count;

    [[nodiscard]] const T* begin() const noexcept { return rows; }
    [[nodiscard]] const T* end() const noexcept { return rows + count; }
};

extern const Rows<KindRange> kinds;
extern const Rows<OrderRange> orders;
/// Full canonical decompositions without what is a `Mark`; Hangul's are computed.
extern const Rows<Letters> decompositions;
extern const Rows<LowerRange> lower;
extern const Rows<Letters> lower_several;

}  // namespace attnport::reader::unicode
