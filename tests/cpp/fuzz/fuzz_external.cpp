// Any bytes as an ONNX file: refused with std::invalid_argument, or references whose numbers are what is written.
#include <cstdint>
#include <stdexcept>

#include "external.hpp"

namespace {

namespace reader = attnport::reader;

void read(std::string_view data) {
    try {
        for (const auto& reference : reader::references(data)) {
            if (reference.location.size() > data.size()) throw std::logic_error("longer than the file");
        }
    } catch (const std::invalid_argument&) {
        return;
    }
}

void read_opset(std::string_view data) {
    try {
        if (reader::opset(data) < 0) throw std::logic_error("an opset below zero");
    } catch (const std::invalid_argument&) {
        return;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    const std::string_view text(reinterpret_cast<const char*>(data), bytes);
    read(text);
    read_opset(text);
    return 0;
}
