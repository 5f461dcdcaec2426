#include <algorithm>
#include <array>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <attnport/error.hpp>

#include "json.hpp"
#include "regular.hpp"
#include "wordpiece.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

/// Ids are less than this, so that every integer type of a model holds them.
std::int64_t id_of(const Located& at) {
    const std::int64_t id = at.integer();
    if (id < 0 || id >= std::int64_t{1} << 31U) at.expected("an id of 0 or more, and less than 2**31");
    return id;
}

Normalizer normalizer_of(const Located& at) {
    at.keys({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    static_cast<void>(at["type"].one_of({"BertNormalizer"}));
    return {at["clean_text"].boolean(), at["handle_chinese_chars"].boolean(),
            at["strip_accents"].optional(&Located::boolean), at["lowercase"].boolean()};
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
            return Part{place["id"].text(), id_of(place["type_id"])};
        });
    });
}

/// What stands around a text.
void read_template(const Located& at, WordPieceRules& rules) {
    at.keys({"type", "single", "pair", "special_tokens"});
    static_cast<void>(at["type"].one_of({"TemplateProcessing"}));
    static_cast<void>(parts_of(at["pair"]));  // which is not used
    rules.specials = at["special_tokens"].map(special_of);
    std::vector<std::string> texts;
    for (const auto& member : parts_of(at["single"])) {
        if (member.size() != 1) continue;
        auto [kind, part] = *member.begin();
        if (kind == "Sequence") {
            texts.push_back(*part.special);
            part.special.reset();
        } else {
            const auto ids = rules.specials.find(*part.special);
            if (ids == rules.specials.end()) at["special_tokens"].fail("key " + quoted(*part.special) + " is missing");
            rules.constant += static_cast<std::int64_t>(ids->second.size());
        }
        rules.parts.push_back(std::move(part));
    }
    if (texts != std::vector<std::string>{"A"}) at["single"].fail("expected one place for the text");
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
    rules.normalizer = normalizer_of(at["normalizer"]);
    at["pre_tokenizer"].keys({"type"});
    static_cast<void>(at["pre_tokenizer"]["type"].one_of({"BertPreTokenizer"}));
    read_model(at["model"], rules);
    // Of two tokens with one content the last counts.
    for (auto& [content, id] : at["added_tokens"].list(added_of)) {
        if (!content.empty()) rules.added.insert_or_assign(std::move(content), id);
    }
    read_template(at["post_processor"], rules);
    check_right(at, "truncation");
    check_right(at, "padding");
    rules.surroundings = surroundings_of(at);
    return rules;
}

/// The file's bytes. Links are followed: a tokenizer may lie outside of a bundle, where people have them.
std::string bytes_of(const std::filesystem::path& path) {
    std::error_code failed;
    const std::filesystem::path target = std::filesystem::canonical(path, failed);
    if (failed) throw SystemError(failed.message());
    RegularFile file(target);
    return file.read_up_to(static_cast<std::size_t>(file.size()));
}

/// What `read` makes of the file. Throws Error, with `known` behind the reason.
template <class Read> auto read_file(const std::filesystem::path& path, const Read& read, const std::string& known) {
    std::string said;
    try {
        const Json value = parse(bytes_of(path), "it");
        return read(Located(value, "file"));
    } catch (const IntegrityError& err) {
        said = err.what();
    } catch (const SystemError& err) {
        said = err.what();
    } catch (const std::invalid_argument& err) {
        said = err.what();
    }
    said.erase(said.find_last_not_of('.') + 1);
    throw Error(path.string() + " is not read here: " + said + "." + known);
}

}  // namespace

WordPieceRules read_wordpiece(const std::filesystem::path& path) {
    return read_file(path, rules_of,
                     " The reader knows BERT's tokenizers only; give it the ids of your own by Options::tokenize, in C "
                     "attnport_options.tokenize.");
}

Surroundings read_surroundings(const std::filesystem::path& path) { return read_file(path, surroundings_of, ""); }

}  // namespace attnport::reader
