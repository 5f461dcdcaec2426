#include "wordpiece_rules.hpp"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string_view>

#include <attnport/error.hpp>

#include "json.hpp"
#include "printable.hpp"
#include "regular.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

/// Ids are below this, so that every integer type of a model holds them.
constexpr std::int64_t id_limit = std::int64_t{1} << 31U;
constexpr std::size_t max_text = 1000;

using Fields = std::initializer_list<std::string_view>;

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

[[noreturn]] void refuse(const std::string& where, const Value& got, std::string_view expected) {
    refuse(where + ": got " + brief(got) + "; expected " + std::string(expected));
}

const Value& member(const Object& object, const std::string& key) {
    const Value* const found = object.find(key);
    if (found == nullptr) refuse(reader::quoted(key) + " is missing");
    return *found;
}

/// The object under a key. As in Python, its words are others than those for an object of fields.
const Object& object_in(const Object& object, const std::string& key) {
    const Value& value = member(object, key);
    const Object* const found = value.get<Object>();
    if (found == nullptr) refuse(key, value, "an object");
    return *found;
}

bool boolean(const Value& value, const std::string& where, std::string_view expected = "bool") {
    const bool* const found = value.get<bool>();
    if (found == nullptr) refuse(where, value, expected);
    return *found;
}

std::int64_t integer(const Value& value, const std::string& where) {
    const std::int64_t* const found = value.get<std::int64_t>();
    if (found == nullptr) refuse(where, value, "int");
    return *found;
}

/// Text reaches a terminal in messages, so control characters and the like stay out.
std::string text(const Value& value, const std::string& where) {
    const std::string* const found = value.get<std::string>();
    if (found == nullptr) refuse(where, value, "str");
    if (!is_printable(*found) || letters(*found) > max_text) {
        refuse(where, value, "printable text of at most " + std::to_string(max_text) + " characters");
    }
    return *found;
}

void expect_word(const Value& value, const std::string& where, std::string_view word) {
    const std::string* const found = value.get<std::string>();
    if (found == nullptr || *found != word) refuse(where, value, "Literal['" + std::string(word) + "']");
}

void expect_false(const Value& value, const std::string& where) {
    const bool* const found = value.get<bool>();
    if (found == nullptr || *found) refuse(where, value, "Literal[False]");
}

/// Calls `each(key, value, where)` for every field, in the order of the file; unknown and missing ones are refused.
template <class Each>
void read_fields(const Value& value, const std::string& where, std::string_view kind, Fields fields, Each each,
                 std::string_view left_out = {}) {
    const Object* const object = value.get<Object>();
    if (object == nullptr) refuse(where, value, kind);
    for (const auto& item : *object) {
        const bool known = std::find(fields.begin(), fields.end(), item.first) != fields.end();
        if (!known && item.first != left_out) refuse(where + ": unknown key " + brief(Value{item.first}));
    }
    for (const std::string_view field : fields) {
        if (!object->has(std::string(field))) refuse(where + ": key " + reader::quoted(field) + " is missing");
    }
    for (const auto& item : *object) {
        if (item.first != left_out) each(item.first, item.second, where + "." + item.first);
    }
}

template <class Each>
void read_list(const Value& value, const std::string& where, std::string_view kind, Each each) {
    const Array* const array = value.get<Array>();
    if (array == nullptr) refuse(where, value, kind);
    for (std::size_t at = 0; at < array->size(); ++at) each((*array)[at], where + "[" + std::to_string(at) + "]");
}

/// An object whose keys are the file's own.
template <class Each>
void read_map(const Value& value, const std::string& where, std::string_view kind, Each each) {
    const Object* const object = value.get<Object>();
    if (object == nullptr) refuse(where, value, kind);
    for (const auto& item : *object) {
        each(text(Value{item.first}, where), item.second, where + "." + item.first);
    }
}

Normalizer read_normalizer(const Value& value) {
    Normalizer found;
    read_fields(value, "normalizer", "_Normalizer",
                {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"},
                [&found](const std::string& key, const Value& given, const std::string& where) {
                    if (key == "type") expect_word(given, where, "BertNormalizer");
                    if (key == "clean_text") found.clean_text = boolean(given, where);
                    if (key == "handle_chinese_chars") found.handle_chinese_chars = boolean(given, where);
                    if (key == "lowercase") found.lowercase = boolean(given, where);
                    if (key == "strip_accents" && given.get<std::nullptr_t>() == nullptr) {
                        found.strip_accents = boolean(given, where, "bool | None");
                    }
                });
    return found;
}

void check_pre_tokenizer(const Value& value) {
    read_fields(value, "pre_tokenizer", "_PreTokenizer", {"type"},
                [](const std::string&, const Value& given, const std::string& where) {
                    expect_word(given, where, "BertPreTokenizer");
                });
}

/// A piece may be any text, control characters too, so the rules for names in a manifest are not for it.
void read_vocabulary(const Value& value, WordPieceRules& rules) {
    const Object* const object = value.get<Object>();
    if (object == nullptr) refuse("model.vocab: expected the id of each piece");
    rules.vocabulary.reserve(object->size());
    for (const auto& item : *object) {
        const std::int64_t* const id = item.second.get<std::int64_t>();
        if (id == nullptr || *id < 0 || *id >= id_limit) {
            refuse("model.vocab: got " + brief(item.second) + " for " + brief(Value{item.first}) +
                   "; expected an id");
        }
        rules.vocabulary.emplace(item.first, *id);
    }
}

/// Everything about the model but its vocabulary. Returns the unknown token.
std::string read_pieces(const Value& value, WordPieceRules& rules) {
    std::string unknown;
    read_fields(
        value, "model", "_Pieces", {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"},
        [&](const std::string& key, const Value& given, const std::string& where) {
            if (key == "type") expect_word(given, where, "WordPiece");
            if (key == "unk_token") unknown = text(given, where);
            if (key == "continuing_subword_prefix") rules.prefix = text(given, where);
            if (key == "max_input_chars_per_word") rules.longest_word = integer(given, where);
        },
        "vocab");
    return unknown;
}

/// Tokens by content; of two with one content the last counts, at the place of the first.
Ordered<std::int64_t> read_added(const Value& value) {
    std::vector<std::pair<std::string, std::int64_t>> listed;
    std::unordered_map<std::string, std::int64_t> last;
    read_list(value, "added_tokens", "tuple[_Added, ...]", [&](const Value& item, const std::string& at) {
        std::string content;
        std::int64_t id = 0;
        read_fields(item, at, "_Added", {"id", "content", "special", "single_word", "lstrip", "rstrip", "normalized"},
                    [&](const std::string& key, const Value& given, const std::string& where) {
                        if (key == "id") {
                            id = integer(given, where);
                        } else if (key == "content") {
                            content = text(given, where);
                        } else if (key == "special") {
                            (void)boolean(given, where);
                        } else {
                            expect_false(given, where);
                        }
                    });
        if (content.empty()) return;
        last[content] = id;
        listed.emplace_back(std::move(content), id);
    });
    Ordered<std::int64_t> found;
    for (const auto& token : listed) found.add(token.first, last.at(token.first));
    return found;
}

/// A place of the template, before its special tokens are known.
struct Place {
    std::string kind;
    std::string id;
    std::int64_t type_id = 0;
};

/// The places of a template; a part without exactly one key is none.
std::vector<Place> read_places(const Value& value, const std::string& where) {
    std::vector<Place> found;
    read_list(value, where, "tuple[Mapping[str, _Place], ...]", [&found](const Value& item, const std::string& at) {
        std::vector<Place> part;
        read_map(item, at, "Mapping[str, _Place]",
                 [&part](std::string kind, const Value& given, const std::string& inside) {
                     Place place;
                     place.kind = std::move(kind);
                     read_fields(given, inside, "_Place", {"id", "type_id"},
                                 [&place](const std::string& key, const Value& its, const std::string& last) {
                                     if (key == "id") place.id = text(its, last);
                                     if (key == "type_id") place.type_id = integer(its, last);
                                 });
                     part.push_back(std::move(place));
                 });
        if (part.size() == 1) found.push_back(std::move(part.front()));
    });
    return found;
}

/// The ids of each special token.
Ordered<std::vector<std::int64_t>> read_specials(const Value& value, const std::string& where) {
    Ordered<std::vector<std::int64_t>> found;
    read_map(value, where, "Mapping[str, _Special]",
             [&found](std::string name, const Value& given, const std::string& inside) {
                 std::vector<std::int64_t> ids;
                 read_fields(given, inside, "_Special", {"id", "ids", "tokens"},
                             [&ids](const std::string& key, const Value& its, const std::string& at) {
                                 if (key == "id") (void)text(its, at);
                                 if (key == "ids") {
                                     read_list(its, at, "tuple[int, ...]",
                                               [&ids](const Value& one, const std::string& last) {
                                                   ids.push_back(integer(one, last));
                                               });
                                 }
                                 if (key == "tokens") {
                                     read_list(its, at, "tuple[str, ...]",
                                               [](const Value& one, const std::string& last) {
                                                   (void)text(one, last);
                                               });
                                 }
                             });
                 found.add(std::move(name), std::move(ids));
             });
    return found;
}

/// What stands around a text.
void read_template(const Value& value, WordPieceRules& rules) {
    std::vector<Place> places;
    read_fields(value, "post_processor", "_Template", {"type", "single", "pair", "special_tokens"},
                [&](const std::string& key, const Value& given, const std::string& where) {
                    if (key == "type") expect_word(given, where, "TemplateProcessing");
                    if (key == "single") places = read_places(given, where);
                    if (key == "pair") (void)read_places(given, where);
                    if (key == "special_tokens") rules.specials = read_specials(given, where);
                });
    std::vector<std::string> texts;
    for (const Place& place : places) {
        if (place.kind == "Sequence") texts.push_back(place.id);
    }
    if (texts != std::vector<std::string>{"A"}) refuse("post_processor.single: expected one place for the text");
    for (Place& place : places) {
        Part part{std::nullopt, place.type_id};
        if (place.kind != "Sequence") {
            const std::vector<std::int64_t>* const ids = rules.specials.find(place.id);
            if (ids == nullptr) refuse(reader::quoted(place.id) + " is missing");
            rules.constant += static_cast<std::int64_t>(ids->size());
            part.special = std::move(place.id);
        }
        rules.parts.push_back(std::move(part));
    }
}

/// Refuses texts that are to be cut or padded at their beginning; older files do not say where.
void check_right(const Object& file, const std::string& key) {
    const Value* const value = file.find(key);
    if (value == nullptr || value->get<std::nullptr_t>() != nullptr) return;
    const Value* const direction = object_in(file, key).find("direction");
    if (direction == nullptr) return;
    const std::string* const found = direction->get<std::string>();
    if (found == nullptr || *found != "Right") refuse(key + ".direction", *direction, "'Right'");
}

std::int64_t read_pad_id(const Object& file, const WordPieceRules& rules) {
    const Value* const padding = file.find("padding");
    if (padding != nullptr && padding->get<std::nullptr_t>() == nullptr) {
        return integer(member(object_in(file, "padding"), "pad_id"), "padding.pad_id");
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
    if (wrong != ids.end()) {
        refuse("got id " + std::to_string(*wrong) + "; expected 0 or more, and less than 2**31");
    }
}

WordPieceRules rules_of(const Object& file) {
    WordPieceRules rules;
    rules.normalizer = read_normalizer(member(file, "normalizer"));
    check_pre_tokenizer(member(file, "pre_tokenizer"));
    read_vocabulary(member(object_in(file, "model"), "vocab"), rules);
    const std::string unknown = read_pieces(member(file, "model"), rules);
    rules.added = read_added(member(file, "added_tokens"));
    read_template(member(file, "post_processor"), rules);
    const auto found = rules.vocabulary.find(unknown);
    if (found == rules.vocabulary.end()) refuse(reader::quoted(unknown) + " is missing");
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
    if (failed) refuse(failed.message());
    RegularFile file(target);
    return file.read_up_to(static_cast<std::size_t>(file.size()));
}

}  // namespace

WordPieceRules read_wordpiece(const std::filesystem::path& path) {
    std::string said;
    try {
        const Value value = parse(bytes_of(path), path.string());
        const Object* const object = value.get<Object>();
        if (object == nullptr) refuse("it is no object");
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
