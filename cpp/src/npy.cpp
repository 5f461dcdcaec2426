// The npy format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
#include "npy.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include "printable.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

constexpr std::string_view npy_magic = "\x93NUMPY";
constexpr std::size_t max_header_bytes = 10000;  // NumPy's own limit
constexpr std::size_t max_rank = 64;             // as above

/// What an npy header says: a Python dict with exactly these keys.
struct Header {
    std::string descr;
    bool fortran_order = false;
    Shape shape;
};

/// The text of an npy header, which NumPy writes with repr(): one dict of a text, a boolean and a tuple of integers.
class HeaderText {
public:
    explicit HeaderText(std::string_view text) : text_(text) {}

    Header parse() {
        Header found;
        std::unordered_set<std::string> keys;
        expect('{');
        while (!take('}')) {
            const std::string key = text();
            expect(':');
            if (key == "descr") {
                found.descr = text();
            } else if (key == "fortran_order") {
                found.fortran_order = boolean();
            } else if (key == "shape") {
                found.shape = tuple();
            } else {
                refuse("its header has a key that is not known");
            }
            if (!keys.insert(key).second) refuse("its header has a key twice");
            if (take('}')) break;
            expect(',');
        }
        skip();
        if (at_ != text_.size() || keys.size() != 3) refuse("its header is damaged");
        return found;
    }

private:
    void skip() {
        while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
    }
    bool take(char letter) {
        skip();
        if (at_ == text_.size() || text_[at_] != letter) return false;
        ++at_;
        return true;
    }
    void expect(char letter) {
        if (!take(letter)) refuse("its header is damaged");
    }
    /// A quoted text without escapes: no dtype of numbers has any.
    std::string text() {
        const char quote = take('"') ? '"' : '\'';
        if (quote == '\'') expect('\'');
        const std::size_t end = text_.find(quote, at_);
        if (end == std::string_view::npos) refuse("its header is damaged");
        const std::string_view found = text_.substr(at_, end - at_);
        if (!is_printable(found) || found.find('\\') != std::string_view::npos) refuse("its header is damaged");
        at_ = end + 1;
        return std::string(found);
    }
    bool boolean() {
        skip();
        for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
            if (text_.substr(at_, word.size()) != word) continue;
            at_ += word.size();
            return value;
        }
        refuse("its header is damaged");
    }
    Shape tuple() {
        Shape found;
        bool more = true;
        expect('(');
        while (!take(')')) {
            if (!more || found.size() == max_rank) refuse("its header is damaged, or has a shape of too many axes");
            found.push_back(size());
            more = take(',');
            if (!more && found.size() == 1) refuse("its header is damaged");  // (3) is no tuple
        }
        return found;
    }
    std::int64_t size() {
        skip();
        const std::size_t start = at_;
        std::int64_t found = 0;
        for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
            if (at_ - start == 18) refuse("its header has a size beyond measure");
            found = found * 10 + (text_[at_] - '0');
        }
        if (at_ == start) refuse("its header is damaged");
        return found;
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

struct Known {
    std::string_view descr;
    std::string_view name;
    std::optional<DType> dtype;
};

/// What NumPy calls a dtype in its files and in words. Bundles have the first six; the others are known by name, so
/// that a message about one is the same as in Python.
constexpr std::array<Known, 16> dtypes{{
    {"<f4", "float32", DType::Float32},
    {"<f2", "float16", DType::Float16},
    {"<f8", "float64", DType::Float64},
    {"<i4", "int32", DType::Int32},
    {"<i8", "int64", DType::Int64},
    {"|b1", "bool", DType::Bool},
    {"|i1", "int8", std::nullopt},
    {"<i2", "int16", std::nullopt},
    {"|u1", "uint8", std::nullopt},
    {"<u2", "uint16", std::nullopt},
    {"<u4", "uint32", std::nullopt},
    {"<u8", "uint64", std::nullopt},
    {"<c8", "complex64", std::nullopt},
    {"<c16", "complex128", std::nullopt},
    {"<f16", "longdouble", std::nullopt},
    {"<c32", "clongdouble", std::nullopt},
}};

/// The header of an npy file and where its data starts.
std::pair<Header, std::size_t> header_of(std::string_view data) {
    const Piece file(data);
    if (data.substr(0, npy_magic.size()) != npy_magic) refuse("a member is no array");
    const std::uint32_t major = file.number(6, 2);  // the version: major, then minor
    if (major < 1 || major > 3 || file.number(7, 1) != 0) refuse("a member is of another npy version than 1.0 to 3.0");
    const unsigned width = major == 1 ? 2 : 4;
    const std::uint32_t bytes = file.number(8, width);
    if (bytes > max_header_bytes) refuse("a member has a header that is too large");
    return {HeaderText(file.slice(8U + width, bytes)).parse(), 8U + width + bytes};
}

/// Whether Fortran's order of elements is another one than C's.
bool order_matters(const Shape& shape) {
    const auto is_long = [](std::int64_t size) { return size > 1; };
    return std::count_if(shape.begin(), shape.end(), is_long) > 1 &&
           std::find(shape.begin(), shape.end(), 0) == shape.end();
}

/// The number of bytes that a shape takes; refused before it can overflow, also where a size of 0 makes it nothing.
std::size_t bytes_of(const Shape& shape, DType dtype) {
    std::size_t found = size_bytes(dtype);
    bool none = false;
    for (const std::int64_t size : shape) {
        const auto factor = static_cast<std::size_t>(size);
        none = none || factor == 0;
        if (factor > max_npz_bytes / found) refuse("its shape is larger than its data");
        if (factor != 0) found *= factor;
    }
    return none ? 0 : found;
}

}  // namespace

void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::string_view Piece::slice(std::uint64_t at, std::uint64_t bytes) const {
    if (at > data_.size() || bytes > data_.size() - at) refuse("it is cut short, or points outside of itself");
    return data_.substr(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes));
}

std::uint32_t Piece::number(std::uint64_t at, unsigned bytes) const {
    std::uint32_t found = 0;
    unsigned shift = 0;
    for (const char letter : slice(at, bytes)) {
        found |= static_cast<std::uint32_t>(static_cast<unsigned char>(letter)) << shift;
        shift += 8;
    }
    return found;
}

NpyArray read_npy(const std::string& name, const Bytes& raw) {
    const std::string_view text(reinterpret_cast<const char*>(raw.data()), raw.size());  // NOLINT(*-reinterpret-cast)
    const auto [header, start] = header_of(text);
    const auto is_it = [&descr = header.descr](const Known& one) { return one.descr == descr; };
    const auto* const known = std::find_if(dtypes.begin(), dtypes.end(), is_it);
    if (header.descr.find('O') != std::string::npos) {
        refuse("Object arrays cannot be loaded when allow_pickle=False");  // NumPy's words for it
    }
    if (header.fortran_order && order_matters(header.shape)) refuse("a member is not in C order");
    if (known == dtypes.end()) return {header.descr, Tensor()};
    if (!known->dtype) return {std::string(known->name), Tensor()};
    const std::size_t bytes = bytes_of(header.shape, *known->dtype);
    if (bytes != raw.size() - start) refuse(reader::quoted(name) + ": its shape does not fit its data");
    // Memory of its own: what stands behind the header need not be aligned.
    auto owned = std::make_shared<Bytes>(std::max<std::size_t>(bytes, 1));
    if (bytes != 0) std::memcpy(owned->data(), &raw[start], bytes);
    const auto is_odd = [](std::byte value) { return value > std::byte{1}; };
    if (*known->dtype == DType::Bool && std::any_of(owned->begin(), owned->end(), is_odd)) {
        refuse(reader::quoted(name) + ": a boolean that is neither 0 nor 1");
    }
    const void* const data = owned->data();
    return {std::string(known->name),
            Tensor(name, *known->dtype, header.shape, std::shared_ptr<const void>(owned, data))};
}

}  // namespace attnport::reader
