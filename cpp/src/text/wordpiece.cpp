#include "text/wordpiece.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <attnport/error.hpp>

#include "format/files.hpp"
#include "format/json.hpp"
#include "format/text.hpp"

namespace attnport::reader {
namespace {

/// Ids are less than this, so that every integer type of a model holds them.
std::int64_t id_of(const Located& at) {
    const std::int64_t id = at.integer();
    if (id < 0 || id >= std::int64_t{1} << 31U) at.expected("an id of 0 or more, and less than 2**31");
    return id;
}

/// A piece may be any text, control characters too, so the rules for names in a manifest are not for it.
std::map<std::string, std::int64_t> vocabulary_of(const Located& at) {
    if (!at.value().is_object()) at.expected("the id of each piece");
    std::map<std::string, std::int64_t> found;
    for (const auto& [piece, id] : at.value().items()) found.emplace(piece, id_of({id, "piece " + quoted(cut(piece))}));
    return found;
}

void read_model(const Located& at, WordPieceRules& rules) {
    at.keys({"type", "vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"});
    static_cast<void>(at["type"].one_of({"WordPiece"}));
    rules.vocabulary = vocabulary_of(at["vocab"]);
    rules.prefix = at["continuing_subword_prefix"].text();
    rules.longest_word = at["max_input_chars_per_word"].integer();
    const auto unknown = rules.vocabulary.find(at["unk_token"].text());
    if (unknown == rules.vocabulary.end()) at["unk_token"].expected("a piece of the vocabulary");
    rules.unknown_id = unknown->second;
}

/// A token that is found in the text as it stands, before anything is done to the text.
std::pair<std::string, std::int64_t> added_of(const Located& at) {
    at.keys({"id", "content", "special", "single_word", "lstrip", "rstrip", "normalized"});
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) {
        if (at[key].boolean()) at[key].expected("false");
    }
    return {at["content"].text(), id_of(at["id"])};
}

std::vector<std::int64_t> special_of(const Located& at) {
    at.keys({"id", "ids", "tokens"});
    static_cast<void>(at["id"].text());
    static_cast<void>(at["tokens"].list(&Located::text));
    return at["ids"].list(id_of);
}

/// Parts of what a text becomes. Each is an object of one member: `SpecialToken`, always there, or `Sequence`, a text.
std::vector<std::map<std::string, Part>> parts_of(const Located& at) {
    return at.list([](const Located& part) {
        return part.map([](const Located& place) {
            place.keys({"id", "type_id"});
            return Part{place["id"].text(), 0, id_of(place["type_id"])};
        });
    });
}

/// What stands around a text, or around the texts of a pair, whose names are A and B.
Template template_of(const Located& at, const WordPieceRules& rules, const std::string& names) {
    Template found;
    std::string texts;
    for (const auto& member : parts_of(at)) {
        if (member.size() != 1) continue;
        auto [kind, part] = *member.begin();
        if (kind == "Sequence") {
            part.text = std::min(names.find(*part.special), names.size());
            texts += *part.special;
            part.special.reset();
        } else {
            const auto ids = rules.specials.find(*part.special);
            if (ids == rules.specials.end()) at.fail("key " + quoted(*part.special) + " is missing in special_tokens");
            found.constant += ids->second.size();
        }
        found.parts.push_back(std::move(part));
    }
    if (texts != names) at.fail("expected a place for each text: " + names);
    return found;
}

void read_templates(const Located& at, WordPieceRules& rules) {
    at.keys({"type", "single", "pair", "special_tokens"});
    static_cast<void>(at["type"].one_of({"TemplateProcessing"}));
    rules.specials = at["special_tokens"].map(special_of);
    rules.templates = {template_of(at["single"], rules, "A"), template_of(at["pair"], rules, "AB")};
}

bool is_given(const Located& at, const char* key) { return !at.value().value(key, Json()).is_null(); }

/// Refuses texts that are to be cut or padded at their beginning; older files do not say where.
void check_right(const Located& at, const char* key) {
    if (!is_given(at, key)) return;
    if (!at[key].value().is_object()) at[key].expected("an object");
    if (at[key].value().count("direction") != 0) static_cast<void>(at[key]["direction"].one_of({"Right"}));
}

/// What pads where the file does not say it; a model that takes a padding mask does not look at it.
constexpr std::array<std::string_view, 4> pad_tokens = {"[PAD]", "<pad>", "<|pad|>", "<|endoftext|>"};

Surroundings surroundings_of(const Located& at) {
    Surroundings found;
    std::array<std::optional<std::int64_t>, pad_tokens.size()> pads;
    at["added_tokens"].each([&](const Located& token) {
        const std::int64_t id = id_of(token["id"]);
        if (token["special"].boolean()) found.special.insert(id);
        const auto known = std::find(pad_tokens.begin(), pad_tokens.end(), token["content"].any_text());
        if (known != pad_tokens.end()) pads[static_cast<std::size_t>(known - pad_tokens.begin())] = id;
    });
    const auto pad = std::find_if(pads.begin(), pads.end(), [](const auto& id) { return id.has_value(); });
    if (pad != pads.end()) found.pad_id = **pad;
    if (!is_given(at, "padding")) return found;
    const Located padding = at["padding"];
    found.pad_id = id_of(padding["pad_id"]);
    found.left = padding.has("direction") && padding["direction"].one_of({"Left", "Right"}) == "Left";
    return found;
}

WordPieceRules rules_of(const Located& at) {
    WordPieceRules rules;
    read_model(at["model"], rules);
    // Of two tokens with one content the last counts.
    for (auto& [content, id] : at["added_tokens"].list(added_of)) {
        if (!content.empty()) rules.added.insert_or_assign(std::move(content), id);
    }
    read_templates(at["post_processor"], rules);
    check_right(at, "truncation");
    check_right(at, "padding");
    rules.surroundings = surroundings_of(at);
    return rules;
}

/// The file's bytes. Links are followed: a tokenizer may lie outside of a bundle, where people have them.
std::string bytes_of(const std::filesystem::path& path) {
    RegularFile file(std::filesystem::canonical(path));
    return file.read_up_to(static_cast<std::size_t>(file.size()));
}

/// What `read` makes of the file. Throws Error, with `known` behind the reason.
template <class Read> auto read_file(const std::filesystem::path& path, const Read& read, const std::string& known) {
    try {
        const Json value = parse(bytes_of(path), "it");
        return read(Located(value, "file"));
    } catch (const std::runtime_error& err) {
        std::string said = err.what();
        said.erase(said.find_last_not_of('.') + 1);
        throw Error(path.string() + " is not read here: " + said + "." + known);
    }
}

WordPieceRules read_wordpiece(const std::filesystem::path& path) {
    return read_file(path, rules_of,
                     " The reader knows BERT's tokenizers only; give it the ids of your own by Options::tokenize, in C "
                     "attnport_options.tokenize.");
}

/// Takes a code point in upper-case hexadecimal digits off the front of a line.
char32_t take_letter(std::istringstream& words) {
    std::string word;
    std::uint32_t letter = 0;
    const bool is_upper = words >> word && word.find_first_not_of("0123456789ABCDEF") == std::string::npos;
    const char* const end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, letter, 16);
    if (!is_upper || error != std::errc() || at != end || letter > 0x10FFFF) throw std::runtime_error("no code point");
    return letter;
}

}  // namespace

Chars::Run Chars::read(const std::string& line) {
    std::istringstream words(line);
    Run run{take_letter(words), take_letter(words), Kind::Moved, 0, {}};
    std::string what;
    words >> what;
    if (what == "+" || what == "-") {
        run.distance = static_cast<std::int64_t>(take_letter(words)) * (what == "+" ? 1 : -1);
    } else if (what == "=") {
        run.kind = Kind::Replaced;
        do {
            run.parts += take_letter(words);
        } while (!(words >> std::ws).eof());
    } else if (what == "removed") {
        run.kind = Kind::Removed;
    } else if (what == "space" || what == "apart") {
        run.kind = what == "space" ? Kind::Space : Kind::Apart;
    } else {
        throw std::runtime_error("no rule " + quoted(cut(what)));
    }
    const std::int64_t least = static_cast<std::int64_t>(run.first) + run.distance;
    const std::int64_t most = static_cast<std::int64_t>(run.last) + run.distance;
    if (run.first > run.last || least < 0 || most > 0x10FFFF) throw std::runtime_error("no range of code points");
    if (!(words >> std::ws).eof()) throw std::runtime_error("more than one rule");
    return run;
}

Chars::Chars(const std::filesystem::path& path) {
    std::size_t number = 0;
    try {
        std::istringstream lines(bytes_of(path));
        for (std::string line; std::getline(lines, line);) {
            ++number;
            Run run = read(line);
            if (!runs_.empty() && run.first <= runs_.back().last) throw std::runtime_error("not in order");
            runs_.push_back(std::move(run));
        }
    } catch (const std::runtime_error& err) {
        const std::string line = number == 0 ? "" : "line " + std::to_string(number) + ": ";
        throw Error(path.string() + " is not read here: " + line + err.what() + ".");
    }
}

const Chars::Run* Chars::find(char32_t letter) const {
    const auto at = std::lower_bound(runs_.begin(), runs_.end(), letter,
                                     [](const Run& run, char32_t wanted) { return run.last < wanted; });
    return at == runs_.end() || letter < at->first ? nullptr : &*at;
}

void Chars::split(std::string_view text, const std::function<void(std::u32string_view)>& word) const {
    std::u32string current;
    const auto end_word = [&] {
        if (!current.empty()) word(current);
        current.clear();
    };
    const auto add = [&](char32_t letter, const Run* run) {
        const bool is_apart = run != nullptr && run->kind == Kind::Apart;
        const bool is_space = run != nullptr && run->kind == Kind::Space;
        if (is_apart || is_space) end_word();
        if (!is_space) current += letter;
        if (is_apart) end_word();
    };
    for (std::size_t at = 0; at < text.size();) {
        const char32_t letter = next_letter(text, at);
        const Run* const run = find(letter);
        if (run != nullptr && run->kind == Kind::Removed) continue;
        if (run != nullptr && run->kind == Kind::Moved) {
            const auto moved = static_cast<char32_t>(static_cast<std::int64_t>(letter) + run->distance);
            add(moved, find(moved));
        } else if (run != nullptr && run->kind == Kind::Replaced) {
            for (const char32_t part : run->parts) add(part, find(part));
        } else {
            add(letter, run);
        }
    }
    end_word();
}

Surroundings read_surroundings(const std::filesystem::path& path) { return read_file(path, surroundings_of, ""); }

WordPiece::WordPiece(const std::filesystem::path& path, const std::filesystem::path& chars)
    : rules_(read_wordpiece(path)), chars_(chars) {
    for (const auto& piece : rules_.vocabulary) longest_piece_ = std::max(longest_piece_, letters(piece.first));
    for (const auto& token : rules_.added) {
        added_lengths_.push_back(token.first.size());
        begins_added_[static_cast<unsigned char>(token.first.front())] = true;
    }
    // Of two tokens that begin at one place the longer one counts.
    std::sort(added_lengths_.begin(), added_lengths_.end(), std::greater<>());
    added_lengths_.erase(std::unique(added_lengths_.begin(), added_lengths_.end()), added_lengths_.end());
}

Tokens WordPiece::encode(const std::vector<std::string_view>& texts, std::int64_t longest) const {
    const Template& wanted = rules_.templates.at(texts.size() - 1);
    const auto most = static_cast<std::size_t>(longest);
    if (wanted.constant > most) {
        throw Error("got " + std::to_string(longest) + " positions; expected " + std::to_string(wanted.constant) +
                    " or more for the tokens of no text.");
    }
    const std::size_t room = most - wanted.constant;
    std::vector<std::vector<std::int64_t>> found(texts.size());
    std::size_t total = 0;
    for (std::size_t at = 0; at < texts.size(); ++at) {
        // Of a pair all ids are made, as the shorter text has to be known.
        append(texts[at], texts.size() == 1 ? room : std::string_view::npos, found[at]);
        total += found[at].size();
    }
    if (total > room) {
        const std::size_t shorter = found.size() == 2 && found[1].size() < found[0].size() ? 1 : 0;
        const std::size_t kept = std::min(found[shorter].size(), found.size() == 2 ? room / 2 : room);
        for (std::size_t at = 0; at < found.size(); ++at) found[at].resize(at == shorter ? kept : room - kept);
    }
    Tokens tokens;
    for (const Part& part : wanted.parts) {
        const std::vector<std::int64_t>& here = part.special ? rules_.specials.at(*part.special) : found[part.text];
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
        chars_.split(part, [&](std::u32string_view word) {
            if (ids.size() < limit) cut(word, ids);
        });
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
