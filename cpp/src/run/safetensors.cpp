// The file is the header's length in 8 bytes, the header in JSON, and the data; the header says where in the data each
// array lies: https://huggingface.co/docs/safetensors/index#format.
#include "run/safetensors.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <attnport/error.hpp>

#include "format/json.hpp"
#include "format/text.hpp"

namespace attnport::reader {

namespace {

constexpr std::size_t length_bytes = 8;
constexpr std::size_t max_header_bytes = std::size_t{4} << 20U;
constexpr std::size_t max_rank = 32;  // what NumPy 1.26 can hold
constexpr const char* metadata = "__metadata__";

/// What the header says of one array.
struct Entry {
    std::string name;
    DType dtype = DType::Float32;
    Shape shape;
    std::uint64_t begin = 0;  ///< where its data begins and ends, behind the header
    std::uint64_t end = 0;
};

/// The dtypes of golden arrays, by the names that the format has for them.
DType dtype_of_code(std::string_view code) {
    if (code == "F64") return DType::Float64;
    if (code == "F32") return DType::Float32;
    if (code == "F16") return DType::Float16;
    if (code == "I64") return DType::Int64;
    if (code == "I32") return DType::Int32;
    return DType::Bool;
}

/// How many bytes a shape takes. Refused before that overflows. The sizes beside a 0 are limited too, since NumPy cannot
/// hold every empty array either.
std::size_t bytes_of(const Located& at, const Shape& shape, DType dtype) {
    std::size_t bytes = size_bytes(dtype);
    bool is_empty = false;
    for (const std::int64_t size : shape) {
        if (size < 0) at.fail("a size of its shape is below 0");
        if (size == 0) {
            is_empty = true;
        } else if (static_cast<std::uint64_t>(size) > max_safetensors_bytes / bytes) {
            at.fail("its shape is larger than " + std::to_string(max_safetensors_bytes) + " bytes");
        } else {
            bytes *= static_cast<std::size_t>(size);
        }
    }
    return is_empty ? 0 : bytes;
}

Entry array_entry_of(const Located& at) {
    at.keys({"dtype", "shape", "data_offsets"});
    const std::vector<std::int64_t> offsets = at["data_offsets"].list(&Located::integer);
    if (offsets.size() != 2 || offsets[0] < 0 || offsets[0] > offsets[1]) {
        at.fail("its data_offsets do not say where the data begins and where it ends");
    }
    Entry entry;
    entry.dtype = dtype_of_code(at["dtype"].one_of({"F64", "F32", "F16", "I64", "I32", "BOOL"}));
    entry.shape = at["shape"].list(&Located::integer);
    entry.begin = static_cast<std::uint64_t>(offsets[0]);
    entry.end = static_cast<std::uint64_t>(offsets[1]);
    if (entry.shape.size() > max_rank) at.fail("its shape has more than " + std::to_string(max_rank) + " sizes");
    if (bytes_of(at, entry.shape, entry.dtype) != entry.end - entry.begin) at.fail("its shape does not fit its data");
    return entry;
}

std::vector<Entry> entries_of(std::string_view header, const std::string& where) {
    if (header.substr(0, 1) != "{") throw IntegrityError(where + ": it is no JSON object.");
    Json value = parse(header, where);
    if (value.count(metadata) != 0) {
        const Json others = value[metadata];
        static_cast<void>(Located(others, where + "." + metadata).map(&Located::text));
        value.erase(metadata);
    }
    std::vector<Entry> entries;
    for (auto& [name, entry] : Located(value, where).map(array_entry_of)) {
        entries.push_back(std::move(entry));
        entries.back().name = name;
    }
    return entries;
}

/// Throws unless the arrays take all the data, each of them its own.
void check_apart(std::vector<Entry> entries, std::uint64_t data_bytes, const std::string& where) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    std::uint64_t at = 0;
    for (const Entry& entry : entries) {
        if (entry.begin != at) {
            throw IntegrityError(where + ": " + quoted(entry.name) + " begins at " + std::to_string(entry.begin) +
                                 "; expected " + std::to_string(at) + ": a gap or an overlap.");
        }
        at = entry.end;
    }
    if (at != data_bytes) {
        throw IntegrityError(where + ": got " + std::to_string(data_bytes) + " bytes of data; its arrays take " +
                             std::to_string(at) + ".");
    }
}

/// A tensor with memory of its own: in the file its data need not be aligned.
Tensor tensor_of(const Entry& entry, std::string_view data, const std::string& where) {
    const std::string_view bytes = data.substr(entry.begin, entry.end - entry.begin);
    const auto is_odd = [](char byte) { return byte != 0 && byte != 1; };
    if (entry.dtype == DType::Bool && std::any_of(bytes.begin(), bytes.end(), is_odd)) {
        throw IntegrityError(where + ": " + quoted(entry.name) + ": a boolean that is neither 0 nor 1.");
    }
    auto owned = std::make_shared<std::vector<char>>(std::max<std::size_t>(bytes.size(), 1));
    std::copy(bytes.begin(), bytes.end(), owned->begin());
    return {entry.name, entry.dtype, entry.shape, std::shared_ptr<const void>(owned, owned->data())};
}

}  // namespace

std::map<std::string, Tensor> read_safetensors(std::string_view data, const std::string& where) {
    std::uint64_t header_bytes = 0;
    for (std::size_t at = std::min(length_bytes, data.size()); at-- > 0;) {
        header_bytes = header_bytes << 8U | static_cast<unsigned char>(data[at]);
    }
    if (data.size() < length_bytes || header_bytes > std::min(max_header_bytes, data.size() - length_bytes)) {
        throw IntegrityError(where + ": it is cut short, or its header is longer than " +
                             std::to_string(max_header_bytes) + " bytes.");
    }
    const std::vector<Entry> entries = entries_of(data.substr(length_bytes, header_bytes), where + ": header");
    data.remove_prefix(length_bytes + header_bytes);
    check_apart(entries, data.size(), where);
    std::map<std::string, Tensor> tensors;
    for (const Entry& entry : entries) tensors.emplace(entry.name, tensor_of(entry, data, where));
    return tensors;
}

}  // namespace attnport::reader
