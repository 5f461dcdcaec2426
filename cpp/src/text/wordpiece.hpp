// From text to token ids as BERT does it (WordPiece: Devlin et al., 2018, https://arxiv.org/abs/1810.04805), with what
// the bundle's writer found each character to become.
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

/// What each character becomes before pieces are searched: the file `tokenizer.chars` (FORMAT.md, "Characters").
class Chars {
public:
    /// Throws Error: there is no such file, or it is not as FORMAT.md has it.
    explicit Chars(const std::filesystem::path& path);

    /// Calls `word` with each word of a text in UTF-8.
    void split(std::string_view text, const std::function<void(std::u32string_view)>& word) const;

private:
    enum class Kind : std::uint8_t { Moved, Replaced, Removed, Space, Apart };
    struct Run {
        char32_t first;
        char32_t last;
        Kind kind;
        std::int64_t distance;  ///< of one that is moved
        std::u32string parts;   ///< of one that is replaced
    };

    /// Throws std::runtime_error: the line is not as FORMAT.md has it.
    static Run read(const std::string& line);
    [[nodiscard]] const Run* find(char32_t letter) const;

    std::vector<Run> runs_;
};

/// A part of what a text or a pair of texts becomes: the ids of a special token, which are always there, or a text.
struct Part {
    std::optional<std::string> special;
    std::size_t text = 0;  ///< which of them, if it is no special token
    std::int64_t type_id = 0;
};

/// What a text becomes, or a pair of texts.
struct Template {
    std::vector<Part> parts;
    std::size_t constant = 0;  ///< how many ids are always there
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
    // No hash table: who writes the file could choose pieces such that all have one hash.
    std::map<std::string, std::int64_t> vocabulary;
    std::string prefix;             ///< stands before every piece of a word but its first
    std::int64_t longest_word = 0;  ///< in characters; a longer one is unknown
    std::int64_t unknown_id = 0;
    Surroundings surroundings;
    std::map<std::string, std::int64_t, std::less<>> added;  ///< tokens that are found in the text as it stands
    std::map<std::string, std::vector<std::int64_t>> specials;
    std::array<Template, 2> templates;  ///< of one text, and of two
};

/// The ids of one row, and the type id of each.
struct Tokens {
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> type_ids;
};

/// The tokenizer of one `tokenizer.json` (the format of the `tokenizers` package) and its `tokenizer.chars`.
class WordPiece {
public:
    /// Throws Error: there is no such file, or it is not BERT's way; anything else in it is refused, never guessed at.
    WordPiece(const std::filesystem::path& path, const std::filesystem::path& chars);

    /// The ids of one text in UTF-8 or of two, cut at their ends so that at most `longest` remain with those that are
    /// always there. Of two, the shorter one is cut to no less than half. Throws Error: those that are always there are
    /// more than `longest`.
    [[nodiscard]] Tokens encode(const std::vector<std::string_view>& texts, std::int64_t longest) const;

    /// Padding, which stands behind a text, and special tokens.
    [[nodiscard]] const Surroundings& surroundings() const noexcept { return rules_.surroundings; }

private:
    [[nodiscard]] std::size_t added_at(std::string_view text, std::size_t at) const;
    void append(std::string_view text, std::size_t limit, std::vector<std::int64_t>& ids) const;
    void cut(std::u32string_view word, std::vector<std::int64_t>& ids) const;

    WordPieceRules rules_;
    Chars chars_;
    std::size_t longest_piece_ = 0;           ///< in characters
    std::vector<std::size_t> added_lengths_;  ///< the lengths in bytes of the added tokens, longest first
    std::array<bool, 256> begins_added_{};    ///< whether some added token begins with that byte
};

}  // namespace attnport::reader
