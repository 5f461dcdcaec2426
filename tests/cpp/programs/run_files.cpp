// Runs a bundle on arrays in files, and leaves its outputs in files: what other readers gave can be compared bit for bit.
//
//     run_files APP FORM THREADS FOLDER NAME:DTYPE:SIZE,SIZE ...
//
// reads FOLDER/<number of the input> and writes FOLDER/<number of the output>.out; a line for each says its shape.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <attnport/bundle.hpp>

#include "ended.hpp"

namespace {

using attnport::DType;

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
    return parts;
}

DType dtype_of(const std::string& wanted) {
    for (const DType one : {DType::Float32, DType::Float16, DType::Float64, DType::Int32, DType::Int64, DType::Bool}) {
        if (attnport::name(one) == wanted) return one;
    }
    throw std::invalid_argument(wanted);
}

std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::invalid_argument(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

int run(const std::vector<std::string>& arguments) {
    attnport::Options options;
    options.form = arguments.at(1);
    options.threads = std::stoi(arguments.at(2));
    const std::string folder = arguments.at(3) + "/";
    std::vector<std::string> names;
    std::vector<std::string> data;
    std::vector<std::pair<DType, attnport::Shape>> kinds;
    for (std::size_t at = 4; at < arguments.size(); ++at) {
        const std::vector<std::string> parts = split(arguments[at], ':');
        attnport::Shape shape;
        for (const std::string& size : split(parts.at(2), ',')) shape.push_back(std::stoll(size));
        names.push_back(parts.at(0));
        data.push_back(contents(folder + std::to_string(at - 4)));
        kinds.emplace_back(dtype_of(parts.at(1)), shape);
    }
    attnport::Inputs inputs;
    for (std::size_t at = 0; at < names.size(); ++at) {
        inputs.emplace_back(names[at], static_cast<const void*>(data[at].data()), kinds[at].first, kinds[at].second);
    }
    const attnport::Model model(arguments.at(0), options);
    const attnport::Outputs outputs = model.run(inputs);
    std::cout << model.form() << ' ' << model.provider() << ' ' << model.version() << '\n';
    for (std::size_t at = 0; at < outputs.size(); ++at) {
        const attnport::Tensor& output = outputs[at];
        std::cout << output.name() << ' ' << attnport::name(output.dtype());
        for (const std::int64_t size : output.shape()) std::cout << ' ' << size;
        std::cout << '\n';
        std::ofstream file(folder + std::to_string(at) + ".out", std::ios::binary);
        const auto bytes = output.size() * attnport::size_bytes(output.dtype());
        file.write(static_cast<const char*>(output.data()), static_cast<std::streamsize>(bytes));
    }
    return 0;
}

}  // namespace

int main(int count, char** values) {
    return ended([&] { return run({values + 1, values + count}); });
}
