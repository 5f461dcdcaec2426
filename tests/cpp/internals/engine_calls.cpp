// What opens an engine, called by itself; a line of answer, or the message of what was thrown.
//
//     engine_calls header FILE             version, size and compute capabilities, and whether later devices
//     engine_calls check FILE RUNTIME VERSION [SM ...]    the header against what a manifest says
//     engine_calls library RUNTIME VERSION  the release of the library that is loaded
//     engine_calls device                  the GPU; then memory there and back
//     engine_calls profile SHAPE LEAST:LARGEST ...  the profile for one input, sizes with commas
#include <array>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <attnport/error.hpp>

#include "runtimes/cuda.hpp"
#include "runtimes/engine.hpp"

namespace {

using attnport::Shape;
namespace reader = attnport::reader;

Shape shape_of(const std::string& text) {
    Shape found;
    std::stringstream stream(text);
    for (std::string size; std::getline(stream, size, ',');) found.push_back(std::stoll(size));
    return found;
}

void show_header(const std::string& path) {
    const reader::EngineHeader found = reader::read_header(path);
    std::cout << found.version << ' ' << found.size_bytes;
    for (const std::int64_t sm : found.sm) std::cout << ' ' << sm;
    if (found.later) std::cout << " and later";
    std::cout << '\n';
}

void check(const std::vector<std::string>& arguments) {
    reader::Form form;
    form.runtime = arguments.at(2);
    form.requires_.runtime = arguments.at(3);
    for (std::size_t at = 4; at < arguments.size(); ++at) form.requires_.sm.push_back(std::stoll(arguments[at]));
    reader::check_engine_file(arguments.at(1), form);
    std::cout << "fits\n";
}

void show_library(const std::vector<std::string>& arguments) {
    reader::Requires wanted;
    wanted.runtime = arguments.at(2);
    wanted.exact = true;
    std::cout << reader::EngineLibrary(arguments.at(1), wanted).version() << '\n';
}

void use_device() {
    const reader::Machine found = reader::this_gpu();
    std::cout << found.device << ", " << found.sm << ", " << found.uuid << ", " << found.driver << '\n';
    const auto device = std::make_shared<reader::cuda::Device>();
    device->open();
    std::array<int, 3> there = {1, 2, 3};
    std::array<int, 3> back = {};
    const reader::cuda::Memory nothing(device, 0);
    auto memory = std::make_unique<reader::cuda::Memory>(device, sizeof there);
    {
        const reader::cuda::Bound bound(*device);
        device->upload(memory->address(), there.data(), sizeof there);
        device->download(back.data(), memory->address(), sizeof back);
        device->synchronize();
    }
    std::cout << (back == there ? "same" : "other") << ", " << device->owns(memory->address()) << ", "
              << device->owns(reinterpret_cast<std::uintptr_t>(back.data())) << '\n';
}

void choose(const std::vector<std::string>& arguments) {
    std::vector<std::vector<reader::Range>> profiles;
    for (std::size_t at = 2; at < arguments.size(); ++at) {
        const std::size_t colon = arguments[at].find(':');
        profiles.push_back({{shape_of(arguments[at].substr(0, colon)), shape_of(arguments[at].substr(colon + 1))}});
    }
    reader::Port port;
    port.name = "x";
    std::cout << reader::choose_profile(profiles, {port}, {shape_of(arguments.at(1))}) << '\n';
}

void run(const std::vector<std::string>& arguments) {
    const std::string& verb = arguments.at(0);
    if (verb == "header") return show_header(arguments.at(1));
    if (verb == "check") return check(arguments);
    if (verb == "library") return show_library(arguments);
    if (verb == "device") return use_device();
    if (verb == "profile") return choose(arguments);
    throw std::out_of_range(verb);
}

}  // namespace

int main(int count, char** values) {
    try {
        run({values + 1, values + count});
        return 0;
    } catch (const attnport::Error& err) {
        std::cout << err.what() << '\n';
        return err.exit_code();
    } catch (const std::exception& err) {
        std::cerr << "wrong use: " << err.what() << '\n';
        return 1;
    }
}
