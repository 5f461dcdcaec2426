#include "wordpiece_rules.hpp"

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <attnport/error.hpp>

#include "decode.hpp"
#include "json.hpp"
#include "regular.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

/// Ids are below this, so that every integer type of a model holds them.
constexpr std::int64_t id_limit = std::int64_t{1} << 31U;

/// A token that is found in the text as it stands, before anything is done to the text.
struct Added {
    std::int64_t id = 0;
    std::string content;
};

struct Place {
    std::string id;
    std::int64_t type_id = 0;
};

struct Special {
    std::vector<std::int64_t> ids;
};

/// What stands around a text. Each part has one key: `SpecialToken`, always there, or `Sequence`, the text.
struct Template {
    std::vector<Ordered<Place>> single;
    Ordered<Special> specials;
};

/// A field that must be right and is not kept.
template <class T> Field checked(std::string_view name) {
    return {name, [](const Value& value, const std::string& where) { (void)Kind<T>::read(value, where); }};
}

Field always_false(std::string_view name) {
    return {name, [](const Value& value, const std::string& where) {
                const bool* const found = value.get<bool>();
                if (found == nullptr || *found) refuse(where, value, "Literal[False]");
            }};
}

}  // namespace

template <> struct Kind<Normalizer> : Record {
    static std::string words() { return "_Normalizer"; }
    static Normalizer read(const Value& value, const std::string& where) {
        Normalizer found;
        std::string type;
        read_record(value, where, words(),
                    {one_of("type", type, {"BertNormalizer"}), into("clean_text", found.clean_text),
                     into("handle_chinese_chars", found.handle_chinese_chars),
                     into("strip_accents", found.strip_accents), into("lowercase", found.lowercase)});
        return found;
    }
};

template <> struct Kind<Added> : Record {
    static std::string words() { return "_Added"; }
    static Added read(const Value& value, const std::string& where) {
        Added found;
        read_record(value, where, words(),
                    {into("id", found.id), into("content", found.content), checked<bool>("special"),
                     always_false("single_word"), always_false("lstrip"), always_false("rstrip"),
                     always_false("normalized")});
        return found;
    }
};

template <> struct Kind<Place> : Record {
    static std::string words() { return "_Place"; }
    static Place read(const Value& value, const std::string& where) {
        Place found;
        read_record(value, where, words(), {into("id", found.id), into("type_id", found.type_id)});
        return found;
    }
};

template <> struct Kind<Special> : Record {
    static std::string words() { return "_Special"; }
    static Special read(const Value& value, const std::string& where) {
        Special found;
        read_record(value, where, words(),
                    {checked<std::string>("id"), into("ids", found.ids), checked<std::vector<std::string>>("tokens")});
        return found;
    }
};

template <> struct Kind<Template> : Record {
    static std::string words() { return "_Template"; }
    static Template read(const Value& value, const std::string& where) {
        Template found;
        std::string type;
        read_record(value, where, words(),
                    {one_of("type", type, {"TemplateProcessing"}), into("single", found.single),
                     checked<std::vector<Ordered<Place>>>("pair"), into("special_tokens", found.specials)});
        return found;
    }
};

namespace {

[[noreturn]] void fail(const std::string& why) { throw std::invalid_argument(why); }

std::string start_of(const Value& value) { return cut(repr(value), 60, ""); }

bool is_null(const Value& value) { return value.get<std::nullptr_t>() != nullptr; }

const Value& member(const Object& object, const std::string& key) {
    const Value* const found = object.find(key);
    if (found == nullptr) fail(reader::quoted(key) + " is missing");
    return *found;
}

const Object& object_in(const Object& file, const std::string& key) {
    const Value& value = member(file, key);
    const Object* const found = value.get<Object>();
    if (found == nullptr) fail(key + ": got " + start_of(value) + "; expected an object");
    return *found;
}

/// A piece may be any text, control characters too, so the rules for names in a manifest are not for it.
std::map<std::string, std::int64_t> vocabulary(const Value& value) {
    const Object* const object = value.get<Object>();
    if (object == nullptr) fail("model.vocab: expected the id of each piece");
    std::map<std::string, std::int64_t> found;
    for (const auto& [piece, given] : *object) {
        const std::int64_t* const id = given.get<std::int64_t>();
        if (id == nullptr || *id < 0 || *id >= id_limit) {
            fail("model.vocab: got " + start_of(given) + " for " + start_of(Value{piece}) + "; expected an id");
        }
        found.emplace(piece, *id);
    }
    return found;
}

/// Reads the model. Returns its unknown token.
std::string read_model(const Object& file, WordPieceRules& rules) {
    rules.vocabulary = vocabulary(member(object_in(file, "model"), "vocab"));
    std::string type;
    std::string unknown;
    read_record(member(file, "model"), "model", "_Pieces",
                {Field{"vocab", [](const Value&, const std::string&) {}}, one_of("type", type, {"WordPiece"}),
                 into("unk_token", unknown), into("continuing_subword_prefix", rules.prefix),
                 into("max_input_chars_per_word", rules.longest_word)});
    return unknown;
}

/// Tokens by content; of two with one content the last counts, at the place of the first.
Ordered<std::int64_t> read_added(const Value& value) {
    const auto listed = Kind<std::vector<Added>>::read(value, "added_tokens");
    std::map<std::string, std::int64_t> last;
    for (const Added& token : listed) last[token.content] = token.id;
    Ordered<std::int64_t> found;
    for (const Added& token : listed) {
        if (!token.content.empty()) found.add(token.content, last.at(token.content));
    }
    return found;
}

void read_template(const Value& value, WordPieceRules& rules) {
    const auto found = Kind<Template>::read(value, "post_processor");
    std::vector<std::string> texts;
    for (const auto& part : found.single) {
        if (part.size() != 1) continue;
        const auto& [kind, place] = *part.begin();
        const bool is_text = kind == "Sequence";
        if (is_text) texts.push_back(place.id);
        rules.parts.push_back({is_text ? std::nullopt : std::optional<std::string>(place.id), place.type_id});
    }
    if (texts != std::vector<std::string>{"A"}) fail("post_processor.single: expected one place for the text");
    for (const auto& [name, special] : found.specials) rules.specials.add(name, special.ids);
    for (const Part& part : rules.parts) {
        if (!part.special) continue;
        const std::vector<std::int64_t>* const ids = rules.specials.find(*part.special);
        if (ids == nullptr) fail(reader::quoted(*part.special) + " is missing");
        rules.constant += static_cast<std::int64_t>(ids->size());
    }
}

/// Refuses texts that are to be cut or padded at their beginning; older files do not say where.
void check_right(const Object& file, const std::string& key) {
    const Value* const value = file.find(key);
    if (value == nullptr || is_null(*value)) return;
    const Value* const direction = object_in(file, key).find("direction");
    if (direction == nullptr) return;
    const std::string* const found = direction->get<std::string>();
    if (found == nullptr || *found != "Right") {
        fail(key + ".direction: got " + start_of(*direction) + "; expected 'Right'");
    }
}

std::int64_t read_pad_id(const Object& file, const WordPieceRules& rules) {
    const Value* const padding = file.find("padding");
    if (padding != nullptr && !is_null(*padding)) {
        return Kind<std::int64_t>::read(member(object_in(file, "padding"), "pad_id"), "padding.pad_id");
    }
    const std::int64_t* const found = rules.added.find("[PAD]");
    return found == nullptr ? 0 : *found;
}

void check_ids(const WordPieceRules& rules) {
    std::vector<std::int64_t> ids{rules.pad_id};
    for (const auto& token : rules.added) ids.push_back(token.second);
    for (const auto& special : rules.specials) ids.insert(ids.end(), special.second.begin(), special.second.end());
    for (const Part& part : rules.parts) ids.push_back(part.type_id);
    const auto wrong = std::find_if(ids.begin(), ids.end(), [](std::int64_t id) { return id < 0 || id >= id_limit; });
    if (wrong != ids.end()) fail("got id " + std::to_string(*wrong) + "; expected 0 or more, and less than 2**31");
}

WordPieceRules rules_of(const Object& file) {
    WordPieceRules rules;
    std::string type;
    rules.normalizer = Kind<Normalizer>::read(member(file, "normalizer"), "normalizer");
    read_record(member(file, "pre_tokenizer"), "pre_tokenizer", "_PreTokenizer",
                {one_of("type", type, {"BertPreTokenizer"})});
    const std::string unknown = read_model(file, rules);
    rules.added = read_added(member(file, "added_tokens"));
    read_template(member(file, "post_processor"), rules);
    const auto found = rules.vocabulary.find(unknown);
    if (found == rules.vocabulary.end()) fail(reader::quoted(unknown) + " is missing");
    rules.unknown_id = found->second;
    check_right(file, "truncation");
    check_right(file, "padding");
    rules.pad_id = read_pad_id(file, rules);
    check_ids(rules);
    return rules;
}

/// The file's bytes. Links are followed: a tokenizer may lie outside of a bundle, where people have them.
std::string bytes_of(const std::filesystem::path& path) {
    std::error_code failed;
    const std::filesystem::path target = std::filesystem::canonical(path, failed);
    if (failed) fail(failed.message());
    RegularFile file(target);
    return file.read_up_to(static_cast<std::size_t>(file.size()));
}

}  // namespace

WordPieceRules read_wordpiece(const std::filesystem::path& path) {
    std::string said;
    try {
        const Value value = parse(bytes_of(path), path.string());
        const Object* const object = value.get<Object>();
        if (object == nullptr) fail("it is no object");
        return rules_of(*object);
    } catch (const IntegrityError& err) {
        said = err.what();
    } catch (const SystemError& err) {
        said = err.what();
    } catch (const std::invalid_argument& err) {
        said = err.what();
    }
    said.erase(said.find_last_not_of('.') + 1);
    throw Error(path.string() + " is not read here: " + said +
                ". The reader knows BERT's tokenizers only; give the model token ids of your own tokenizer.");
}

}  // namespace attnport::reader
