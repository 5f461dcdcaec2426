#include <attnport/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <variant>

#include "contract.hpp"
#include "feeds.hpp"
#include "guarded.hpp"
#include "halves.hpp"
#include "memory.hpp"
#include "wordpiece.hpp"
#include "words.hpp"

namespace attnport {
namespace {

constexpr std::string_view ids_name = "input_ids";
constexpr std::string_view types_name = "token_type_ids";

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

template <class T>
Tensor filled(const TensorSpec& spec, DType dtype, const Shape& shape, const std::vector<T>& values) {
    auto memory = reader::allocate(values.size() * sizeof(T));
    std::copy(values.begin(), values.end(), reinterpret_cast<T*>(memory.get()));
    return {spec.name, dtype, shape, std::move(memory)};
}

/// Rows of ids, padded on the right, in the dtype of the contract.
Tensor padded(const TensorSpec& spec, const std::vector<const std::vector<std::int64_t>*>& rows, std::int64_t size,
              std::int64_t padding) {
    const Shape shape{static_cast<std::int64_t>(rows.size()), size};
    std::vector<std::int64_t> values(elements(shape), padding);
    for (std::size_t at = 0; at < rows.size(); ++at) {
        std::copy(rows[at]->begin(), rows[at]->end(),
                  values.begin() + static_cast<std::ptrdiff_t>(at) * static_cast<std::ptrdiff_t>(size));
    }
    switch (spec.dtype) {
        case DType::Int64: return filled(spec, spec.dtype, shape, values);
        case DType::Int32: {
            std::vector<std::int32_t> narrow(values.size());
            std::transform(values.begin(), values.end(), narrow.begin(),
                           [](std::int64_t one) { return static_cast<std::int32_t>(one); });
            return filled(spec, spec.dtype, shape, narrow);
        }
        case DType::Bool: {
            std::vector<std::uint8_t> marks(values.size());
            std::transform(values.begin(), values.end(), marks.begin(),
                           [](std::int64_t one) { return static_cast<std::uint8_t>(one != 0); });
            return filled(spec, spec.dtype, shape, marks);
        }
        default: break;
    }
    std::vector<double> numbers(values.size());
    std::transform(values.begin(), values.end(), numbers.begin(),
                   [](std::int64_t one) { return static_cast<double>(one); });
    return reader::cast(filled(spec, DType::Float64, shape, numbers), spec.dtype);
}

}  // namespace

struct Tokenizer::Rules {
    reader::WordPiece words;
    IO io;
    Dim length;
    bool has_mask = false;

    Rules(const std::filesystem::path& path, const IO& contract) : words(path), io(contract) {
        if (!reads_text(io)) throw Error("the model does not read text: it takes " + inputs() + ".");
        const Axis& last = ids_dims()[1];
        if (const auto* const fixed = std::get_if<std::int64_t>(&last)) length = {"", *fixed, *fixed, *fixed};
        for (const Dim& dim : io.dims) {
            if (last == Axis(dim.name)) length = dim;
        }
        has_mask = std::any_of(io.masks.begin(), io.masks.end(),
                               [](const Mask& mask) { return mask.input && mask.has("padding"); });
    }

    [[nodiscard]] const std::vector<Axis>& ids_dims() const {
        return std::find_if(io.inputs.begin(), io.inputs.end(),
                            [](const TensorSpec& spec) { return spec.name == ids_name; })
            ->dims;
    }

    [[nodiscard]] std::string inputs() const {
        std::vector<std::string> listed;
        for (const TensorSpec& spec : io.inputs) listed.push_back(spec.text());
        return reader::joined(listed);
    }

    [[nodiscard]] std::vector<reader::Tokens> rows(const std::vector<std::string>& texts, std::size_t begin,
                                                    std::size_t end) const {
        std::vector<reader::Tokens> found;
        found.reserve(end - begin);
        for (std::size_t at = begin; at < end; ++at) {
            try {
                found.push_back(words.encode(texts[at], length.max));
            } catch (const std::invalid_argument& err) {
                throw FeedError("texts[" + std::to_string(at) + "]: got " + err.what() + "; expected text in UTF-8.");
            }
        }
        return found;
    }

    [[nodiscard]] std::vector<Tensor> encode(const std::vector<std::string>& texts, std::size_t begin,
                                             std::size_t end) const {
        if (begin == end) throw FeedError("texts: got []; expected a list of one text or more.");
        const std::vector<reader::Tokens> tokens = rows(texts, begin, end);
        std::vector<const std::vector<std::int64_t>*> ids;
        std::vector<const std::vector<std::int64_t>*> types;
        std::vector<std::int64_t> lengths;
        for (const reader::Tokens& row : tokens) {
            ids.push_back(&row.ids);
            types.push_back(&row.type_ids);
            lengths.push_back(static_cast<std::int64_t>(row.ids.size()));
        }
        const auto [shortest, longest_row] = std::minmax_element(lengths.begin(), lengths.end());
        const std::int64_t size = reader::at_least(length, *longest_row);
        std::vector<Tensor> feeds;
        for (const TensorSpec& spec : io.inputs) {
            if (spec.name == ids_name) feeds.push_back(padded(spec, ids, size, words.pad_id()));
            if (spec.name == types_name) feeds.push_back(padded(spec, types, size, 0));
        }
        if (has_mask || *shortest < size) {
            for (Tensor& mask : reader::padding_masks(io, lengths, size)) reader::put(feeds, std::move(mask));
        }
        return feeds;
    }
};

Tokenizer::Tokenizer(const std::filesystem::path& path, const IO& io)
    : rules_(reader::guarded([&] { return std::make_unique<Rules>(path, io); })) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<Tensor> Tokenizer::encode(const std::vector<std::string>& texts) const {
    return encode(texts, 0, texts.size());
}

std::vector<Tensor> Tokenizer::encode(const std::vector<std::string>& texts, std::size_t begin,
                                      std::size_t end) const {
    const auto too_many = [&] {
        return Error("there is no memory for " + std::to_string(end - begin) + " texts at this model's length.");
    };
    return reader::guarded([&] {
        if (rules_ == nullptr) throw Error("the tokenizer was moved from.");
        try {
            return rules_->encode(texts, begin, end);
        } catch (const std::bad_alloc&) {
            throw too_many();
        } catch (const std::length_error&) {
            throw too_many();
        }
    });
}

}  // namespace attnport
