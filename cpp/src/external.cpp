// The encoding: https://protobuf.dev/programming-guides/encoding; field numbers: onnx.proto3. Every place where a
// tensor can stand is visited: initializers, sparse ones, attributes, subgraphs, functions and training graphs. What is
// counted on the way is in structure.cpp.
#include "external.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <map>
#include <stdexcept>
#include <system_error>
#include <tuple>
#include <utility>

#include "printable.hpp"
#include "regular.hpp"
#include "structure.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

constexpr std::uint64_t external_data = 13;  // of TensorProto
constexpr std::uint64_t data_location = 14;  // of TensorProto
constexpr std::uint64_t opset_import = 8;    // of ModelProto
constexpr std::uint64_t largest_tag = 0xFFFFFFFF;
constexpr std::uint64_t tag_bytes = 5;

// Bytes in memory, or of a file, of which a window is kept: weights inside of a model are passed over unread, and a
// file that is cut short meanwhile is an error and not a signal, as it would be where it is mapped.
class Bytes {
public:
    explicit Bytes(std::string_view data) : window_(data), size_(data.size()) {}
    explicit Bytes(const RegularFile& file) : file_(&file), size_(file.size()) {}

    [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

    [[nodiscard]] std::uint8_t at(std::uint64_t where) {
        require(where);
        return static_cast<std::uint8_t>(window_[static_cast<std::size_t>(where - begin_)]);
    }

    [[nodiscard]] std::string text(std::uint64_t from, std::uint64_t end) {
        std::string result;
        while (from < end) {
            require(from);
            const auto part =
                window_.substr(static_cast<std::size_t>(from - begin_), static_cast<std::size_t>(end - from));
            result += part;
            from += part.size();
        }
        return result;
    }

private:
    void require(std::uint64_t where) {
        if (where < begin_ || where - begin_ >= window_.size()) fill(where);
    }

    void fill(std::uint64_t where) {
        constexpr std::size_t window_bytes = std::size_t{1} << 16U;
        if (file_ == nullptr) throw std::invalid_argument("cut short");
        buffer_.resize(window_bytes);
        ssize_t got = -1;
        do {
            got = ::pread(file_->descriptor(), buffer_.data(), buffer_.size(), static_cast<off_t>(where));
        } while (got < 0 && errno == EINTR);
        if (got < 0) throw SystemError(std::generic_category().message(errno));
        if (got == 0) throw std::invalid_argument("cut short");
        begin_ = where;
        window_ = std::string_view(buffer_).substr(0, static_cast<std::size_t>(got));
    }

    const RegularFile* file_ = nullptr;
    std::string buffer_;
    std::string_view window_;
    std::uint64_t begin_ = 0;
    std::uint64_t size_;
};

// From one byte of the file up to another.
struct Extent {
    std::uint64_t at;
    std::uint64_t end;
};

// A number of up to 70 bits: one that does not fit into 64 is the largest.
std::uint64_t read_varint(Bytes& bytes, Extent& span) {
    std::uint64_t low = 0;
    bool beyond = false;
    for (unsigned shift = 0;; shift += 7) {
        if (span.at >= span.end || shift > 63) throw std::invalid_argument("cut short, or a number that is too long");
        const std::uint64_t byte = bytes.at(span.at++);
        const std::uint64_t bits = byte & 0x7FU;
        low |= bits << shift;
        beyond = beyond || (shift == 63 && bits > 1);
        if (byte < 0x80) return beyond ? std::numeric_limits<std::uint64_t>::max() : low;
    }
}

// One field: its number, and its integer value or where its bytes are.
struct Field {
    std::uint64_t number = 0;
    std::uint64_t integer = 0;
    std::optional<Extent> bytes;
};

// Calls `take` with each integer and each run of bytes of a message. Numbers of fixed size are passed over.
template <class Take> void each_field(Bytes& bytes, Extent span, const Take& take) {
    while (span.at < span.end) {
        const std::uint64_t begin = span.at;
        const std::uint64_t tag = read_varint(bytes, span);
        // Protobuf keeps 32 bits of a tag, and some parsers drop the others: 2**29 + 7 is field 7 there.
        if (tag > largest_tag || span.at - begin > tag_bytes) {
            throw std::invalid_argument("a tag of more than 32 bits");
        }
        Field field;
        field.number = tag >> 3U;
        if (field.number == 0) throw std::invalid_argument("field number 0");
        const auto wire = static_cast<unsigned>(tag & 7U);
        if (wire == 0) {
            field.integer = read_varint(bytes, span);
            take(field);
        } else if (wire == 2) {
            const std::uint64_t length = read_varint(bytes, span);
            if (length > span.end - span.at) throw std::invalid_argument("cut short");
            field.bytes = Extent{span.at, span.at + length};
            take(field);
            span.at += length;
        } else if (wire == 1 || wire == 5) {
            const std::uint64_t length = wire == 1 ? 8 : 4;
            if (length > span.end - span.at) throw std::invalid_argument("cut short");
            span.at += length;
        } else {
            throw std::invalid_argument("wire type " + std::to_string(wire));
        }
    }
}

std::string utf8(Bytes& bytes, const Extent& span) {
    std::string text = bytes.text(span.at, span.end);
    if (!is_utf8(text)) throw std::invalid_argument("text that is no UTF-8");
    return text;
}

std::uint64_t integer(const std::string& text) {
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || text.size() > 19) throw std::invalid_argument(quoted(text) + " is not an offset or length");
    return std::stoull(text);
}

// Key and value of an entry of a tensor's external data.
std::pair<std::optional<std::string>, std::string> read_entry(Bytes& bytes, const Extent& span) {
    std::pair<std::optional<std::string>, std::string> entry;
    each_field(bytes, span, [&](const Field& field) {
        if (!field.bytes) return;
        std::string text = utf8(bytes, *field.bytes);
        if (field.number == 1) {
            entry.first = std::move(text);
        } else if (field.number == 2) {
            entry.second = std::move(text);
        }
    });
    return entry;
}

enum class Message { Model, Training, Function, Graph, Nested, Node, Attribute, Sparse, Tensor };

// A field of a message in which a tensor can stand, and what it holds.
struct Holds {
    Message message;
    std::uint64_t field;
    Message what;
};
using M = Message;
constexpr std::array<Holds, 22> holdings{{
    {M::Model, 7, M::Graph},      {M::Model, 20, M::Training},    {M::Model, 25, M::Function},
    {M::Training, 1, M::Graph},   {M::Training, 2, M::Graph},     {M::Function, 7, M::Node},
    {M::Function, 11, M::Attribute}, {M::Graph, 1, M::Node},      {M::Graph, 5, M::Tensor},
    {M::Graph, 15, M::Sparse},    {M::Nested, 1, M::Node},        {M::Nested, 5, M::Tensor},
    {M::Nested, 15, M::Sparse},   {M::Node, 5, M::Attribute},     {M::Attribute, 5, M::Tensor},
    {M::Attribute, 6, M::Nested}, {M::Attribute, 10, M::Tensor},  {M::Attribute, 11, M::Nested},
    {M::Attribute, 22, M::Sparse}, {M::Attribute, 23, M::Sparse}, {M::Sparse, 1, M::Tensor},
    {M::Sparse, 2, M::Tensor},
}};

std::optional<Message> inside(Message message, std::uint64_t field) {
    for (const Holds& one : holdings) {
        if (one.message == message && one.field == field) return one.what;
    }
    return std::nullopt;
}

class References {
public:
    explicit References(Bytes& bytes) : bytes_(bytes) {}

    std::vector<Reference> all() {
        visit({0, bytes_.size()}, Message::Model, structure_.model(), 0);
        structure_.check();
        return std::move(found_);
    }

private:
    // What the message holds is counted in `body`, inside `depth` nested graphs.
    // NOLINTNEXTLINE(misc-no-recursion): bounded by the depth that a body takes
    void visit(const Extent& span, Message message, Body& body, int depth) {
        if (message == Message::Tensor) return tensor(span);
        if (message == Message::Function) return function(span);
        if (message == Message::Node) return node(span, body, depth);
        if (message == Message::Nested) body.graph(++depth);
        each_field(bytes_, span, [&](const Field& field) {  // NOLINT(misc-no-recursion)
            const auto holds = inside(message, field.number);
            if (holds && field.bytes) visit(*field.bytes, *holds, body, depth);
        });
    }

    void node(const Extent& span, Body& body, int depth) {  // NOLINT(misc-no-recursion)
        const auto graphs = body.graphs();
        Name name;
        each_field(bytes_, span, [&](const Field& field) {  // NOLINT(misc-no-recursion)
            if (!field.bytes) return;
            const auto holds = inside(Message::Node, field.number);
            if (holds) visit(*field.bytes, *holds, body, depth);
            if (field.number == 7) std::get<0>(name) = text(*field.bytes);
            if (field.number == 4) std::get<1>(name) = text(*field.bytes);
            if (field.number == 8) std::get<2>(name) = text(*field.bytes);
        });
        body.node(std::move(name), depth, body.graphs() > graphs);
    }

    void function(const Extent& span) {  // NOLINT(misc-no-recursion)
        Body body;
        Name name;
        each_field(bytes_, span, [&](const Field& field) {  // NOLINT(misc-no-recursion)
            if (!field.bytes) return;
            const auto graphs = body.graphs();
            const auto holds = inside(Message::Function, field.number);
            if (holds) visit(*field.bytes, *holds, body, 0);
            if (holds == Message::Attribute && body.graphs() > graphs) refuse_graph();
            if (field.number == 10) std::get<0>(name) = text(*field.bytes);
            if (field.number == 1) std::get<1>(name) = text(*field.bytes);
            if (field.number == 13) std::get<2>(name) = text(*field.bytes);
        });
        structure_.add(std::move(name), std::move(body));
    }

    [[nodiscard]] std::string text(const Extent& span) { return bytes_.text(span.at, span.end); }

    void tensor(const Extent& span) {
        std::map<std::string, std::string> entries;
        bool external = false;
        each_field(bytes_, span, [&](const Field& field) {
            if (field.number == data_location) {
                // Protobuf cuts an enum to 32 bits (2**32 + 1 is EXTERNAL), and the last of several counts: any that is
                // not DEFAULT is taken for external, and nothing takes that back.
                external = external || field.integer != 0;
            } else if (field.number == external_data && field.bytes) {
                external = true;
                auto [key, value] = read_entry(bytes_, *field.bytes);
                if (!entries.emplace(key.value_or(""), std::move(value)).second) {
                    throw std::invalid_argument("a tensor's external data has " + (key ? quoted(*key) : "None") +
                                                " twice");
                }
            }
        });
        if (!external) return;
        Reference reference;
        reference.location = entries["location"];
        if (entries.count("offset") != 0) reference.offset = integer(entries["offset"]);
        if (entries.count("length") != 0) reference.length = integer(entries["length"]);
        found_.push_back(std::move(reference));
    }

    Bytes& bytes_;
    Structure structure_;
    std::vector<Reference> found_;
};

std::int64_t read_opset(Bytes& bytes) {
    std::optional<std::uint64_t> found;
    each_field(bytes, {0, bytes.size()}, [&](const Field& field) {
        if (field.number != opset_import || !field.bytes) return;
        std::string domain;
        std::uint64_t version = 0;
        each_field(bytes, *field.bytes, [&](const Field& part) {
            if (part.number == 1 && part.bytes) domain = utf8(bytes, *part.bytes);
            if (part.number == 2) version = part.integer;
        });
        if (domain.empty() || domain == "ai.onnx") found = std::max(found.value_or(0), version);
    });
    if (!found) throw std::invalid_argument("it imports no opset of ONNX's own operators");
    constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return static_cast<std::int64_t>(std::min(*found, largest));
}

// What `read` makes of a file, or of bytes in memory.
template <class Source, class Read> auto read_from(const Source& source, const Read& read) {
    Bytes bytes(source);
    if (bytes.size() == 0) throw std::invalid_argument("the file is empty");
    return read(bytes);
}

std::vector<Reference> all_references(Bytes& bytes) { return References(bytes).all(); }

}  // namespace

std::vector<Reference> references(std::string_view data) { return read_from(data, all_references); }
std::vector<Reference> references(const std::filesystem::path& path) {
    return read_from(RegularFile(path), all_references);
}

std::int64_t opset(std::string_view data) { return read_from(data, read_opset); }
std::int64_t opset(const std::filesystem::path& path) { return read_from(RegularFile(path), read_opset); }

}  // namespace attnport::reader
