#include "unicode.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace attnport::reader::unicode {
namespace {

// Hangul's syllables are put together by a rule: The Unicode Standard, 3.12.
constexpr char32_t syllables = 0xAC00;
constexpr char32_t syllable_count = 11172;
constexpr char32_t leading = 0x1100;
constexpr char32_t vowels = 0x1161;
constexpr char32_t vowel_count = 21;
constexpr char32_t trailing = 0x11A7;
constexpr char32_t trailing_count = 28;

/// The last row that begins at the letter or before it; null where there is none.
template <class T> const T* row(const Rows<T>& rows, char32_t letter) noexcept {
    const auto* const behind = std::upper_bound(rows.begin(), rows.end(), letter,
                                                [](char32_t wanted, const T& one) { return wanted < one.first; });
    return behind == rows.begin() ? nullptr : std::prev(behind);
}

/// The canonical combining class of what is no `Mark`.
std::uint8_t order(char32_t letter) noexcept {
    const OrderRange* const found = row(orders, letter);
    return found != nullptr && letter <= found->last ? found->order : std::uint8_t{0};
}

void append_parts(std::u32string& text, char32_t letter) {
    if (letter >= syllables && letter < syllables + syllable_count) {
        const char32_t index = letter - syllables;
        text.push_back(leading + index / (vowel_count * trailing_count));
        text.push_back(vowels + index % (vowel_count * trailing_count) / trailing_count);
        if (index % trailing_count != 0) text.push_back(trailing + index % trailing_count);
        return;
    }
    const Run* const run = row(replaced, letter);
    const Letters* const found = row(decompositions, letter);
    if (run != nullptr && letter - run->first < run->count) {
        text += replacements.rows[run->at + (letter - run->first)];
    } else if (found != nullptr && found->first == letter) {
        text.append(found->parts.data(), found->count);
    } else {
        text += letter;
    }
}

}  // namespace

Kind kind(char32_t letter) noexcept {
    const KindRange* const found = row(kinds, letter);
    return found != nullptr && letter <= found->last ? found->kind : Kind::Other;
}

std::u32string without_marks(std::u32string_view text) {
    std::u32string found;
    std::u32string parts;
    std::size_t movable = 0;  // what stands from here on may still change places
    const auto settle = [&found, &movable] {
        if (found.size() - movable > 1) {
            std::stable_sort(found.begin() + static_cast<std::ptrdiff_t>(movable), found.end(),
                             [](char32_t one, char32_t other) { return order(one) < order(other); });
        }
    };
    for (const char32_t letter : text) {
        parts.clear();
        append_parts(parts, letter);
        for (const char32_t part : parts) {
            const Kind its = kind(part);
            if (its == Kind::Mark) continue;
            if (its != Kind::FixedMark && order(part) != 0) {
                found += part;
                continue;
            }
            settle();
            if (its != Kind::FixedMark) found += part;
            movable = found.size();
        }
    }
    settle();
    return found;
}

std::u32string lower_case(std::u32string_view text) {
    std::u32string found;
    found.reserve(text.size());
    for (const char32_t letter : text) {
        const Letters* const several = row(lower_several, letter);
        if (several != nullptr && several->first == letter) {
            found.append(several->parts.data(), several->count);
            continue;
        }
        const LowerRange* const range = row(lower, letter);
        const bool changes = range != nullptr && letter <= range->last && (letter - range->first) % range->step == 0;
        found += changes ? static_cast<char32_t>(static_cast<std::int64_t>(letter) + range->distance) : letter;
    }
    return found;
}

}  // namespace attnport::reader::unicode
