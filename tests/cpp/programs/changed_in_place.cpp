// Runs a bundle, changes every file of it in place, and runs the open model again on the same inputs.
//
//     changed_in_place APP cut|overwritten|unchecked
//
// unchecked: nothing is changed, and the files are not compared with their digests.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <attnport/bundle.hpp>

#include "ended.hpp"

namespace {

constexpr std::int64_t batch = 2;
constexpr std::int64_t seq = 5;

void change(const std::filesystem::path& file, bool cut) {
    if (cut) {
        std::filesystem::resize_file(file, 0);
        return;
    }
    std::fstream opened(file, std::ios::in | std::ios::out | std::ios::binary);
    opened << std::string(std::filesystem::file_size(file), '?');
}

int run(const char* app, std::string_view damage) {
    attnport::Options options;
    options.check_files = damage != "unchecked";
    const attnport::Model model(app, options);
    std::vector<std::int64_t> ids;
    for (std::int64_t id = 0; id < batch * seq; ++id) ids.push_back(id);
    const std::vector<std::int64_t> mask(ids.size(), 1);
    const attnport::Inputs inputs{{"ids", ids, {batch, seq}}, {"attention_mask", mask, {batch, seq}}};
    const auto before = model.run(inputs);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(app)) {
        if (entry.is_regular_file() && damage != "unchecked") change(entry.path(), damage == "cut");
    }
    const auto after = model.run(inputs);
    bool same = true;
    for (const auto& one : before) {
        const std::size_t bytes = one.size() * attnport::size_bytes(one.dtype());
        same = same && std::memcmp(one.data(), after.at(one.name()).data(), bytes) == 0;
    }
    std::cout << model.form() << (same ? ": same\n" : ": other numbers\n");
    return 0;
}

}  // namespace

int main(int count, char** words) {
    return ended([&] { return count == 3 ? run(words[1], words[2]) : 64; });
}
