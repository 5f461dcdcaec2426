#include <attnport/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "format/contract.hpp"
#include "format/text.hpp"
#include "run/arrays.hpp"
#include "run/feeds.hpp"
#include "run/guarded.hpp"
#include "text/wordpiece.hpp"

namespace attnport {
namespace {

constexpr std::string_view ids_name = "input_ids";
constexpr std::string_view types_name = "token_type_ids";
/// Which tokens are pooled: all of them, but not those of a prompt.
constexpr std::string_view pooled_name = "pooled_mask";

bool is_token_tensor(const TensorSpec& spec) { return spec.name == ids_name || spec.name == types_name; }

bool is_padding_mask(const IO& io, const std::string& input) {
    return std::any_of(io.masks.begin(), io.masks.end(),
                       [&input](const Mask& mask) { return mask.input == input && mask.has("padding"); });
}

/// Whether each input is one that text can fill.
bool reads_text(const IO& io) {
    bool has_ids = false;
    for (const TensorSpec& spec : io.inputs) {
        if (is_token_tensor(spec) ? spec.dims.size() != 2 : !is_padding_mask(io, spec.name)) return false;
        has_ids = has_ids || spec.name == ids_name;
    }
    return has_ids;
}

using Ids = std::vector<std::int64_t>;

/// How rows are padded.
struct Padding {
    std::int64_t size;
    bool left;
};

/// Rows of ids with padding before or behind them, in the dtype of the contract.
Tensor padded(const TensorSpec& spec, const std::vector<Ids>& rows, const Padding& padding, std::int64_t pad_id) {
    const std::int64_t size = padding.size;
    const Shape shape{static_cast<std::int64_t>(rows.size()), size};
    std::vector<std::int64_t> values(elements(shape), pad_id);
    for (std::size_t at = 0; at < rows.size(); ++at) {
        const auto row = values.begin() + static_cast<std::ptrdiff_t>(at) * static_cast<std::ptrdiff_t>(size);
        const auto length = static_cast<std::ptrdiff_t>(rows[at].size());
        std::copy(rows[at].begin(), rows[at].end(), row + (padding.left ? size - length : 0));
    }
    return reader::tensor_of(spec, shape, values);
}

}  // namespace

struct Tokenizer::Rules {
    std::optional<reader::WordPiece> words;  ///< none where the application makes the ids
    Tokenize tokenize;
    reader::Surroundings around;
    IO io;
    Dim length;
    std::int64_t longest = 0;  ///< tokens of a text
    bool has_mask = false;

    Rules(const std::filesystem::path& path, const std::filesystem::path& chars, const IO& contract, Tokenize own,
          std::optional<std::int64_t> limit)
        : tokenize(std::move(own)), io(contract) {
        if (tokenize) {
            around = reader::read_surroundings(path);
        } else {
            if (chars.empty()) {
                throw Error(path.string() + " is not read here, as only BERT's tokenizers are. Give the ids of your own "
                            "by Options::tokenize, in C attnport_options.tokenize.");
            }
            words.emplace(path, chars);
            around = words->surroundings();
        }
        if (!reads_text(io)) {
            std::vector<std::string> inputs;
            for (const TensorSpec& spec : io.inputs) inputs.push_back(spec.text());
            throw Error("the model does not read text: it takes " + reader::joined(inputs) + ".");
        }
        const Axis& last = reader::find_named(io.inputs, ids_name)->dims[1];
        if (const auto* const fixed = std::get_if<std::int64_t>(&last)) length = {"", *fixed, *fixed, *fixed};
        if (const Dim* const dim = reader::dim_of(io.dims, last)) length = *dim;
        longest = std::min(limit.value_or(length.max), length.max);
        for (const Mask& mask : io.masks) {
            if (!mask.input || !mask.has("padding")) continue;
            has_mask = true;
            if (mask.carries != "mask") around.left = false;  // lengths alone cannot say that padding stands before
        }
    }

    /// The tokens of a text or a pair of texts, which messages call by `name`.
    [[nodiscard]] reader::Tokens row(const std::vector<std::string_view>& texts, const std::string& name) const {
        if (!std::all_of(texts.begin(), texts.end(), reader::is_utf8)) {
            throw FeedError(name + ": got bytes that are no UTF-8; expected text in UTF-8.");
        }
        if (words) return words->encode(texts, longest);
        if (texts.size() > 1) throw FeedError(name + ": the application's tokenizer reads no pair; give inputs to `map`.");
        reader::Tokens found;
        found.ids = tokenize(std::string(texts[0]), longest);
        if (static_cast<std::int64_t>(found.ids.size()) > longest) {
            throw FeedError(name + ": the application's tokenizer gave " + std::to_string(found.ids.size()) +
                            " ids; expected at most " + std::to_string(longest) + ".");
        }
        found.type_ids.assign(found.ids.size(), 0);
        return found;
    }

    /// The tokens of a prompt, with what stands before every text and without a special one behind it.
    [[nodiscard]] std::size_t tokens_before(const std::string& prompt) const {
        const Ids ids = row({prompt}, "prompt").ids;
        return ids.size() - (!ids.empty() && around.special.count(ids.back()) != 0 ? 1U : 0U);
    }

    [[nodiscard]] std::vector<Tensor> encode(const std::vector<std::string>& texts, const std::vector<std::string>* others,
                                             std::size_t begin, std::size_t end, const std::string& prompt) const {
        if (begin == end) throw FeedError("texts: got none; expected one or more.");
        std::vector<Ids> ids;
        std::vector<Ids> types;
        std::vector<std::int64_t> lengths;
        for (std::size_t at = begin; at < end; ++at) {
            const std::string text = prompt + texts[at];
            std::vector<std::string_view> parts{text};
            if (others != nullptr) parts.emplace_back((*others)[at]);
            reader::Tokens found = row(parts, "texts[" + std::to_string(at) + "]");
            lengths.push_back(static_cast<std::int64_t>(found.ids.size()));
            ids.push_back(std::move(found.ids));
            types.push_back(std::move(found.type_ids));
        }
        const auto [shortest, longest_row] = std::minmax_element(lengths.begin(), lengths.end());
        const Padding padding{reader::at_least(length, *longest_row), around.left};
        std::vector<Tensor> feeds;
        for (const TensorSpec& spec : io.inputs) {
            if (spec.name == ids_name) feeds.push_back(padded(spec, ids, padding, around.pad_id));
            if (spec.name == types_name) feeds.push_back(padded(spec, types, padding, 0));
        }
        if (has_mask || *shortest < padding.size) {
            for (Tensor& mask : reader::padding_masks(io, lengths, padding.size, padding.left)) {
                reader::put(feeds, std::move(mask));
            }
        }
        const TensorSpec* const pooled = reader::find_named(io.inputs, pooled_name);
        if (!prompt.empty() && pooled != nullptr) {
            const std::size_t before = tokens_before(prompt);
            std::vector<Ids> marks;
            for (const Ids& one : ids) {
                marks.emplace_back(one.size(), 1);
                std::fill_n(marks.back().begin(), std::min(before, one.size()), 0);
            }
            reader::put(feeds, padded(*pooled, marks, padding, 0));
        }
        return feeds;
    }
};

Tokenizer::Tokenizer(const std::filesystem::path& path, const std::filesystem::path& chars, const IO& io,
                     Tokenize tokenize, std::optional<std::int64_t> limit)
    : rules_(reader::guarded([&] { return std::make_unique<Rules>(path, chars, io, std::move(tokenize), limit); })) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<Tensor> Tokenizer::encode(const std::vector<std::string>& texts, const std::string& prompt) const {
    return encode(texts, nullptr, 0, texts.size(), prompt);
}

std::vector<Tensor> Tokenizer::encode_pairs(const std::vector<std::string>& texts, const std::vector<std::string>& others,
                                            const std::string& prompt) const {
    return encode(texts, &others, 0, texts.size(), prompt);
}

std::vector<Tensor> Tokenizer::encode(const std::vector<std::string>& texts, const std::vector<std::string>* others,
                                      std::size_t begin, std::size_t end, const std::string& prompt) const {
    const auto too_many = [&] {
        return Error("there is no memory for " + std::to_string(end - begin) + " texts at this model's length.");
    };
    return reader::guarded([&] {
        if (rules_ == nullptr) throw Error("the tokenizer was moved from.");
        if (others != nullptr && others->size() != texts.size()) {
            throw FeedError("others: got " + std::to_string(others->size()) + " texts; expected " +
                            std::to_string(texts.size()) + ", one for each of the first texts.");
        }
        try {
            return rules_->encode(texts, others, begin, end, prompt);
        } catch (const std::bad_alloc&) {
            throw too_many();
        } catch (const std::length_error&) {
            throw too_many();
        }
    });
}

}  // namespace attnport
