// tokenize FILE CONTRACT [together]: what the tokenizer, with its `.chars` beside FILE, makes of each line of stdin, text
// as hexadecimal digits; or of all in one call. CONTRACT: names of inputs, their dtype, dims and a range of lengths, such as
// `input_ids,mask int64 batch,seq 4 12`; a name with `mask` in it is that of a padding mask.
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include <attnport/bundle.hpp>

#include "../hexadecimal.hpp"

namespace {

attnport::DType dtype(const std::string& name) {
    for (const auto one : {attnport::DType::Float16, attnport::DType::Float32, attnport::DType::Float64,
                           attnport::DType::Int32, attnport::DType::Int64, attnport::DType::Bool}) {
        if (attnport::name(one) == name) return one;
    }
    throw attnport::Error("no dtype " + name);
}

std::vector<std::string> parts(const std::string& text) {
    std::vector<std::string> found;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) found.push_back(part);
    return found;
}

attnport::IO contract(const std::string& text) {
    std::string names;
    std::string type;
    std::string axes;
    std::int64_t least = 0;
    std::int64_t most = 0;
    std::istringstream(text) >> names >> type >> axes >> least >> most;
    attnport::IO io;
    io.dims = {{"batch", 1, 2, 8}, {"seq", least, least, most}};
    std::vector<attnport::Axis> dims;
    for (const std::string& axis : parts(axes)) {
        const bool fixed = axis.find_first_not_of("0123456789") == std::string::npos;
        dims.push_back(fixed ? attnport::Axis(std::stoll(axis)) : attnport::Axis(axis));
    }
    for (const std::string& name : parts(names)) {
        io.inputs.push_back({name, dtype(type), dims, std::nullopt});
        if (name.find("mask") == std::string::npos) continue;
        io.masks.push_back({{"padding"}, name, "keep", "upper_left", 0, "mask", std::nullopt});
    }
    io.outputs = {{"y", attnport::DType::Float32, {attnport::Axis("batch")}, std::nullopt}};
    return io;
}

template <class T> void print_values(const attnport::Tensor& tensor) {
    for (std::size_t at = 0; at < tensor.size(); ++at) std::cout << ' ' << +tensor.data<T>()[at];
}

void print(const attnport::Tensor& tensor) {
    std::cout << tensor.name() << ' ' << attnport::name(tensor.dtype());
    for (const std::int64_t size : tensor.shape()) std::cout << ' ' << size;
    std::cout << ':';
    switch (tensor.dtype()) {
        case attnport::DType::Int64: print_values<std::int64_t>(tensor); break;
        case attnport::DType::Int32: print_values<std::int32_t>(tensor); break;
        case attnport::DType::Float32: print_values<float>(tensor); break;
        case attnport::DType::Float64: print_values<double>(tensor); break;
        case attnport::DType::Bool: print_values<bool>(tensor); break;
        default: {
            for (std::size_t at = 0; at < tensor.size(); ++at) {
                std::cout << ' ' << tensor.data<attnport::Float16>()[at].bits;
            }
        }
    }
    std::cout << ';';
}

void encode(const attnport::Tokenizer& tokenizer, const std::vector<std::string>& texts) {
    try {
        for (const attnport::Tensor& tensor : tokenizer.encode(texts)) print(tensor);
    } catch (const attnport::FeedError& err) {
        std::cout << "refused: " << err.what();
    }
    std::cout << '\n';
}

}  // namespace

int main(int count, char** values) {
    try {
        if (count < 3) return 64;
        const std::filesystem::path file = values[1];
        const auto chars = std::filesystem::path(file).replace_extension(".chars");
        const attnport::Tokenizer tokenizer(file, chars, contract(values[2]));
        std::vector<std::string> together;
        for (std::string line; std::getline(std::cin, line);) {
            if (count > 3) {
                together.push_back(hexadecimal::bytes(line));
            } else {
                encode(tokenizer, {hexadecimal::bytes(line)});
            }
        }
        if (count > 3) encode(tokenizer, together);
        return 0;
    } catch (const attnport::Error& err) {
        std::cerr << "error: " << err.what() << '\n';
        return err.exit_code();
    } catch (const std::exception& err) {
        std::cerr << "not expected: " << err.what() << '\n';
        return 1;
    }
}
