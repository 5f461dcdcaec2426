// What a `tokenizer.json` says (the format of the `tokenizers` package), where that is BERT's own way. Anything else in
// the file is refused, never guessed at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ordered.hpp"

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

struct WordPieceRules {
    Normalizer normalizer;
    // No hash table: who writes the file could choose pieces such that all have one hash.
    std::map<std::string, std::int64_t> vocabulary;
    std::string prefix;             ///< stands before every piece of a word but its first
    std::int64_t longest_word = 0;  ///< in characters; a longer one is unknown
    std::int64_t unknown_id = 0;
    std::int64_t pad_id = 0;
    Ordered<std::int64_t> added;  ///< tokens that are found in the text as it stands
    Ordered<std::vector<std::int64_t>> specials;
    std::vector<Part> parts;
    std::int64_t constant = 0;  ///< how many ids are always there
};

/// Reads the file. Throws Error: there is none, or it is not BERT's way.
[[nodiscard]] WordPieceRules read_wordpiece(const std::filesystem::path& path);

}  // namespace attnport::reader
