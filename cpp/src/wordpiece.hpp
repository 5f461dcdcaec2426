// From text to token ids as BERT does it (WordPiece: Devlin et al., 2018, https://arxiv.org/abs/1810.04805).
//
// How long a text may be is not the file's to say: its `max_length` is what somebody else's program once cut at, and
// the model's contract has the limit of the model. So texts are cut by the contract and padded to the longest one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace attnport::reader {

/// What is done to a text first.
struct Normalizer {
    bool clean_text = true;
    bool handle_chinese_chars = true;
    std::optional<bool> strip_accents;
    bool lowercase = true;

    [[nodiscard]] bool strips() const { return strip_accents.value_or(lowercase); }
};

/// A part of what a text becomes: the ids of a special token, which are always there, or the text.
struct Part {
    std::optional<std::string> special;
    std::int64_t type_id = 0;
};

/// What a `tokenizer.json` of any kind says of tokens beside those of a text.
struct Surroundings {
    std::int64_t pad_id = 0;
    bool left = false;               ///< padding stands before a text
    std::set<std::int64_t> special;  ///< the ids of special tokens
};

/// Reads only that. Throws Error: there is no such file, or it is no tokenizer.
[[nodiscard]] Surroundings read_surroundings(const std::filesystem::path& path);

struct WordPieceRules {
    Normalizer normalizer;
    // No hash table: who writes the file could choose pieces such that all have one hash.
    std::map<std::string, std::int64_t> vocabulary;
    std::string prefix;             ///< stands before every piece of a word but its first
    std::int64_t longest_word = 0;  ///< in characters; a longer one is unknown
    std::int64_t unknown_id = 0;
    Surroundings surroundings;
    std::map<std::string, std::int64_t, std::less<>> added;  ///< tokens that are found in the text as it stands
    std::map<std::string, std::vector<std::int64_t>> specials;
    std::vector<Part> parts;
    std::int64_t constant = 0;  ///< how many ids are always there
};

/// Reads a `tokenizer.json` (the format of the `tokenizers` package), where that is BERT's own way; anything else in
/// the file is refused, never guessed at. Throws Error: there is no such file, or it is not BERT's way.
[[nodiscard]] WordPieceRules read_wordpiece(const std::filesystem::path& path);

/// The ids of one text, and the type id of each.
struct Tokens {
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> type_ids;
};

/// The tokenizer of one `tokenizer.json`.
class WordPiece {
public:
    /// Throws Error: there is no such file, or it is not BERT's way.
    explicit WordPiece(const std::filesystem::path& path);

    /// The ids of a text, cut at its end so that at most `longest` remain with those that are always there.
    ///
    /// Throws Error: those that are always there are more than `longest`. std::invalid_argument: it is no UTF-8.
    [[nodiscard]] Tokens encode(std::string_view text, std::int64_t longest) const;

    /// Padding, which stands behind a text, and special tokens.
    [[nodiscard]] const Surroundings& surroundings() const noexcept { return rules_.surroundings; }

private:
    [[nodiscard]] std::size_t added_at(std::string_view text, std::size_t at) const;
    void append(std::string_view text, std::size_t limit, std::vector<std::int64_t>& ids) const;
    void cut(std::u32string_view word, std::vector<std::int64_t>& ids) const;

    WordPieceRules rules_;
    std::size_t longest_piece_ = 0;           ///< in characters
    std::vector<std::size_t> added_lengths_;  ///< the lengths in bytes of the added tokens, longest first
    std::array<bool, 256> begins_added_{};    ///< whether some added token begins with that byte
};

/// A text after the steps that the rules ask for.
[[nodiscard]] std::u32string normalised(std::u32string text, const Normalizer& rules);

/// What stands between spaces; every punctuation mark is a word of its own.
[[nodiscard]] std::vector<std::u32string_view> words(std::u32string_view text);

/// Throws std::invalid_argument: it is no UTF-8.
void check_utf8(std::string_view text);

[[nodiscard]] std::u32string from_utf8(std::string_view text);

}  // namespace attnport::reader
