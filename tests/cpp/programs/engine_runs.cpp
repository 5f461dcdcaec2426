// A bundle of the pretended engine (y = 2 x where m), run as a program would that has its tensors on the GPU.
//
//     engine_runs APP cpu SIZE ...   from and to the CPU, at each size, twice
//     engine_runs APP device         inputs on the GPU and one on the CPU; outputs stay there, and outlive the model
//     engine_runs APP host|inside|beside  a pointer that is no memory of the GPU, and two inside of some that is
//     engine_runs APP threads        four threads on one model
//     engine_runs APP trusted        as cpu, at size 1; the files are not compared
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <attnport/bundle.hpp>

#include "ended.hpp"

namespace {

using attnport::Model;
using attnport::Place;

/// Memory of the pretended GPU is memory of the host, so it can be looked at.
class OnDevice {
public:
    OnDevice(const void* data, std::size_t bytes) {
        call<int(unsigned)>("cuInit")(0);
        call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context_, 0);
        call<int(void*)>("cuCtxSetCurrent")(context_);
        if (call<int(std::uint64_t*, std::size_t)>("cuMemAlloc_v2")(&address_, bytes) != 0) throw std::bad_alloc();
        std::memcpy(pointer(), data, bytes);
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
    ~OnDevice() {
        call<int(std::uint64_t)>("cuMemFree_v2")(address_);
        call<int(int)>("cuDevicePrimaryCtxRelease_v2")(0);
    }

    [[nodiscard]] std::byte* pointer() const { return reinterpret_cast<std::byte*>(address_); }

private:
    template <class F> static F* call(const char* name) {
        static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
        void* const found = library == nullptr ? nullptr : dlsym(library, name);
        if (found == nullptr) throw std::runtime_error(name);
        return reinterpret_cast<F*>(found);
    }

    void* context_ = nullptr;
    std::uint64_t address_ = 0;
};

/// Rows 0, 2, 4, ... are kept by the mask.
struct Feeds {
    explicit Feeds(std::int64_t rows) : n(rows), x(static_cast<std::size_t>(3 * rows)), m(new bool[x.size() / 3]) {
        for (std::size_t at = 0; at < x.size(); ++at) {
            x[at] = static_cast<float>(at);
            m[at / 3] = at / 3 % 2 == 0;
        }
    }
    [[nodiscard]] attnport::Inputs inputs() const { return {{"x", x, {n, 3}}, {"m", m.get(), {n}}}; }

    std::int64_t n;
    std::vector<float> x;
    std::unique_ptr<bool[]> m;
};

bool is_right(const attnport::Outputs& outputs, const Feeds& given) {
    const attnport::Tensor& y = outputs.at("y");
    if (y.shape() != attnport::Shape{given.n, 3}) return false;
    for (std::size_t at = 0; at < y.size(); ++at) {
        if (y.data<float>()[at] != (given.m[at / 3] ? 2 * given.x[at] : 0.0F)) return false;
    }
    return true;
}

int on_the_cpu(const Model& model, const std::vector<std::string>& sizes) {
    for (std::size_t at = 2; at < 2 * sizes.size() - 2; ++at) {
        const Feeds feeds(std::stoll(sizes[at < sizes.size() ? at : at - sizes.size() + 2]));
        if (!is_right(model.run(feeds.inputs()), feeds)) return 4;
    }
    std::cout << model.provider() << ", " << model.version() << ", " << model.device() << '\n';
    return 0;
}

int on_the_device(std::optional<Model> model) {
    const Feeds feeds(5);
    const OnDevice x(feeds.x.data(), feeds.x.size() * sizeof(float));
    const auto outputs = model->run_device({
        {"x", static_cast<const void*>(x.pointer()), attnport::DType::Float32, {5, 3}, Place::Cuda},
        {"m", feeds.m.get(), {5}},
    });
    const Feeds others(6);
    static_cast<void>(model->run_device(others.inputs()));
    const attnport::Tensor y = outputs.at("y");
    model.reset();
    if (y.place() != Place::Cuda || y.dtype() != attnport::DType::BFloat16) return 4;
    const auto* const found = static_cast<const std::uint16_t*>(y.data());
    for (std::size_t at = 0; at < y.size(); ++at) {
        const float wanted = feeds.m[at / 3] ? 2 * feeds.x[at] : 0.0F;
        std::uint32_t bits = 0;
        std::memcpy(&bits, &wanted, sizeof bits);
        if (found[at] != bits >> 16U) return 4;
    }
    std::cout << "stays on the device\n";
    return 0;
}

int elsewhere(const Model& model, const std::string& where) {
    const Feeds feeds(5);
    const OnDevice memory(std::vector<char>(1024).data(), 1024);
    const std::byte* pointer = memory.pointer();
    if (where == "inside") pointer += 4;
    if (where == "beside") pointer += 512;
    const void* const given = where == "host" ? static_cast<const void*>(feeds.x.data()) : pointer;
    static_cast<void>(model.run_device({
        {"x", given, attnport::DType::Float32, {5, 3}, Place::Cuda},
        {"m", feeds.m.get(), {5}},
    }));
    return 0;
}

int threaded(const Model& model) {
    std::atomic<int> wrong{0};
    std::vector<std::thread> running;
    for (int thread = 0; thread < 4; ++thread) {
        running.emplace_back([&model, &wrong, thread] {
            for (int round = 0; round < 50; ++round) {
                const Feeds feeds(thread % 2 == 0 ? 1 + round % 8 : 16 + round % 49);
                if (!is_right(model.run(feeds.inputs()), feeds)) ++wrong;
            }
        });
    }
    for (std::thread& one : running) one.join();
    return wrong == 0 ? 0 : 4;
}

int run(const std::vector<std::string>& arguments) {
    const std::string& how = arguments.at(1);
    attnport::Options options;
    options.check_files = how != "trusted";
    std::optional<Model> model(std::in_place, arguments.at(0), options);
    if (how == "trusted") return on_the_cpu(*model, {"", "", "1"});
    if (how == "cpu") return on_the_cpu(*model, arguments);
    if (how == "device") return on_the_device(std::move(model));
    if (how == "threads") return threaded(*model);
    return elsewhere(*model, how);
}

}  // namespace

int main(int count, char** values) {
    return ended([&] { return run({values + 1, values + count}); });
}
