#include "wordpiece.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <utility>

#include <attnport/error.hpp>

#include "printable.hpp"
#include "unicode.hpp"

namespace attnport::reader {
namespace {

struct Block {
    char32_t first;
    char32_t last;
};
constexpr std::array<Block, 8> ideographs{{{0x4E00, 0x9FFF},
                                           {0x3400, 0x4DBF},
                                           {0x20000, 0x2A6DF},
                                           {0x2A700, 0x2B73F},
                                           {0x2B740, 0x2B81F},
                                           {0x2B920, 0x2CEAF},
                                           {0xF900, 0xFAFF},
                                           {0x2F800, 0x2FA1F}}};

bool is_ideograph(char32_t letter) noexcept {
    return std::any_of(ideographs.begin(), ideographs.end(),
                       [letter](const Block& one) { return one.first <= letter && letter <= one.last; });
}

bool is_white(char32_t letter) noexcept {
    constexpr std::u32string_view others = U" \u00a0\u1680\u2028\u2029\u202f\u205f\u3000";
    return (letter >= U'\t' && letter <= U'\r') || letter == 0x85 || (letter >= 0x2000 && letter <= 0x200A) ||
           others.find(letter) != std::u32string_view::npos;
}

/// BERT takes all of ASCII's marks for punctuation, symbols such as `$` too.
bool is_mark(char32_t letter) noexcept {
    constexpr std::u32string_view symbols = U"$+<=>^`|~";
    return symbols.find(letter) != std::u32string_view::npos || unicode::kind(letter) == unicode::Kind::Punctuation;
}

bool is_removed(char32_t letter) noexcept {
    if (letter == U'\t' || letter == U'\n' || letter == U'\r') return false;
    return letter == 0xFFFD || unicode::kind(letter) == unicode::Kind::Removed;
}

std::u32string cleaned(std::u32string_view text) {
    std::u32string found;
    found.reserve(text.size());
    for (const char32_t letter : text) {
        if (!is_removed(letter)) found += is_white(letter) ? U' ' : letter;
    }
    return found;
}

std::u32string with_ideographs_apart(std::u32string_view text) {
    std::u32string found;
    found.reserve(text.size());
    for (const char32_t letter : text) {
        if (is_ideograph(letter)) {
            found += U' ';
            found += letter;
            found += U' ';
        } else {
            found += letter;
        }
    }
    return found;
}

}  // namespace

void check_utf8(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t start = at;
        if (next_letter(text, at) == no_letter) {
            throw std::invalid_argument("no UTF-8 at byte " + std::to_string(start));
        }
    }
}

std::u32string from_utf8(std::string_view text) {
    std::u32string found;
    found.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) found += next_letter(text, at);
    return found;
}

std::u32string normalised(std::u32string text, const Normalizer& rules) {
    if (rules.clean_text) text = cleaned(text);
    if (rules.handle_chinese_chars) text = with_ideographs_apart(text);
    if (rules.strips()) text = unicode::without_marks(text);
    if (rules.lowercase) text = unicode::lower_case(text);
    return text;
}

std::vector<std::u32string_view> words(std::u32string_view text) {
    std::vector<std::u32string_view> found;
    std::size_t start = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const bool mark = is_mark(text[at]);
        if (!mark && !is_white(text[at])) continue;
        if (start < at) found.push_back(text.substr(start, at - start));
        if (mark) found.push_back(text.substr(at, 1));
        start = at + 1;
    }
    if (start < text.size()) found.push_back(text.substr(start));
    return found;
}

WordPiece::WordPiece(const std::filesystem::path& path) : rules_(read_wordpiece(path)) {
    for (const auto& piece : rules_.vocabulary) longest_piece_ = std::max(longest_piece_, letters(piece.first));
    for (const auto& token : rules_.added) {
        added_lengths_.push_back(token.first.size());
        begins_added_[static_cast<unsigned char>(token.first.front())] = true;
    }
    // Of two tokens that begin at one place the longer one counts.
    std::sort(added_lengths_.begin(), added_lengths_.end(), std::greater<>());
    added_lengths_.erase(std::unique(added_lengths_.begin(), added_lengths_.end()), added_lengths_.end());
}

Tokens WordPiece::encode(std::string_view text, std::int64_t longest) const {
    if (rules_.constant > longest) {
        throw Error("got " + std::to_string(longest) + " positions; expected " + std::to_string(rules_.constant) +
                    " or more for the tokens of no text.");
    }
    check_utf8(text);
    const auto limit = static_cast<std::size_t>(longest - rules_.constant);
    std::vector<std::int64_t> found;
    append(text, limit, found);
    if (found.size() > limit) found.resize(limit);
    Tokens tokens;
    for (const Part& part : rules_.parts) {
        const std::vector<std::int64_t>& here = part.special ? rules_.specials.at(*part.special) : found;
        tokens.ids.insert(tokens.ids.end(), here.begin(), here.end());
        tokens.type_ids.resize(tokens.ids.size(), part.type_id);
    }
    return tokens;
}

/// The length in bytes of the added token that begins here; 0 = none does.
std::size_t WordPiece::added_at(std::string_view text, std::size_t at) const {
    if (!begins_added_[static_cast<unsigned char>(text[at])]) return 0;
    for (const std::size_t length : added_lengths_) {
        if (length <= text.size() - at && rules_.added.count(text.substr(at, length)) != 0) return length;
    }
    return 0;
}

/// The ids of a text; of one that is cut, as many as are needed or a few more.
void WordPiece::append(std::string_view text, std::size_t limit, std::vector<std::int64_t>& ids) const {
    const auto append_plain = [&](std::string_view part) {
        const std::u32string plain = normalised(from_utf8(part), rules_.normalizer);
        for (const std::u32string_view word : words(plain)) {
            if (ids.size() < limit) cut(word, ids);
        }
    };
    std::size_t start = 0;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t length = added_at(text, at);
        if (length == 0) {
            ++at;
            continue;
        }
        append_plain(text.substr(start, at - start));
        ids.push_back(rules_.added.find(text.substr(at, length))->second);
        at += length;
        start = at;
    }
    append_plain(text.substr(start));
}

/// The longest piece that the vocabulary has, again and again; one unknown token where there is none.
void WordPiece::cut(std::u32string_view word, std::vector<std::int64_t>& ids) const {
    if (static_cast<std::int64_t>(word.size()) > rules_.longest_word) {
        ids.push_back(rules_.unknown_id);
        return;
    }
    const std::size_t before = ids.size();
    std::string piece;
    std::vector<std::size_t> ends;  // of the piece in bytes, after each of its characters
    for (std::size_t start = 0; start < word.size();) {
        piece = start == 0 ? std::string() : rules_.prefix;
        ends.clear();
        for (const char32_t letter : word.substr(start, longest_piece_)) {
            append_letter(piece, letter);
            ends.push_back(piece.size());
        }
        auto found = rules_.vocabulary.end();
        while (!ends.empty() && found == rules_.vocabulary.end()) {
            piece.resize(ends.back());
            found = rules_.vocabulary.find(piece);
            if (found == rules_.vocabulary.end()) ends.pop_back();
        }
        if (ends.empty()) {
            ids.resize(before);
            ids.push_back(rules_.unknown_id);
            return;
        }
        ids.push_back(found->second);
        start += ends.size();
    }
}

}  // namespace attnport::reader
