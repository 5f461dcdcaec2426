// safetensors_dump FILE: what the reader finds in a safetensors file, a line an array: name, dtype, shape, digest of
// its data.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include <attnport/error.hpp>

#include "format/files.hpp"
#include "format/text.hpp"
#include "run/goldens.hpp"

int main(int count, char** values) {
    if (count != 2) return 2;
    try {
        std::ifstream file(values[1], std::ios::binary);
        const std::string data{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        for (const auto& [key, tensor] : attnport::reader::read_safetensors(data, "goldens")) {
            const std::size_t bytes = tensor.size() * attnport::size_bytes(tensor.dtype());
            const auto digest =
                attnport::reader::hex(attnport::reader::sha256({static_cast<const char*>(tensor.data()), bytes}));
            std::printf("%s|%s|%s|%s\n", key.c_str(), std::string(attnport::name(tensor.dtype())).c_str(),
                        attnport::reader::listed(tensor.shape()).c_str(), digest.c_str());
        }
        return 0;
    } catch (const attnport::IntegrityError& err) {
        std::fprintf(stderr, "%s\n", err.what());
        return err.exit_code();
    } catch (const std::exception& err) {
        std::fprintf(stderr, "not expected: %s\n", err.what());
        return 1;
    }
}
