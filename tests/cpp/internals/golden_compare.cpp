// golden_compare FILE CASE...: compares <case>/got with <case>/out and <case>/valid of a safetensors file, and prints
// the verdict as attnport::reader::compare gives it. The bounds are <case>/bounds: RMS, then max.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include "run/goldens.hpp"

int main(int count, char** values) {
    try {
        std::ifstream file(values[1], std::ios::binary);
        const std::string data{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        const auto arrays = attnport::reader::read_safetensors(data, "goldens");
        for (int index = 2; index < count; ++index) {
            const std::string called = values[index];
            const double* limits = arrays.at(called + "/bounds").data<double>();
            const attnport::reader::Bound bound{called, "y", "fp32", limits[0], limits[1]};
            const auto found = arrays.find(called + "/got");
            const auto* got = found == arrays.end() ? nullptr : &found->second;
            const auto& expected = arrays.at(called + "/out");
            const auto& valid = arrays.at(called + "/valid");
            const auto result = attnport::reader::compare(bound, got, expected, valid, "");
            std::printf("%d|%s|%.6e|%.6e\n", result.passed ? 1 : 0, result.reason.c_str(),
                        result.rms_error.value_or(-1), result.max_error.value_or(-1));
        }
        return 0;
    } catch (const std::exception& err) {
        std::fprintf(stderr, "not expected: %s\n", err.what());
        return 1;
    }
}
