// TensorRT's library, of one engine that computes y = bfloat16(factor x) where m, else 0, for the pretended driver.
// With TensorRT's headers it has the classes that they declare, and ends the process for a call of any function that a
// session does not need; without them it tells its release alone.
//
//     PRETENDED_TENSORRT  its release (1.7.1.116); PRETENDED_FACTOR  (2)
//     PRETENDED_FAIL      a function that does not do what it is asked for; PRETENDED_LOG  of calls
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "pretended.hpp"

namespace {

int part_of_release(std::size_t wanted) {
    std::string rest = pretended::setting("PRETENDED_TENSORRT", "1.7.1.116");
    for (std::size_t part = 0; part < wanted; ++part) rest = rest.substr(rest.find('.') + 1);
    return std::atoi(rest.c_str());
}

}  // namespace

extern "C" {

std::int32_t getInferLibMajorVersion() noexcept { return part_of_release(0); }
std::int32_t getInferLibMinorVersion() noexcept { return part_of_release(1); }
std::int32_t getInferLibPatchVersion() noexcept { return part_of_release(2); }
std::int32_t getInferLibBuildVersion() noexcept { return part_of_release(3); }
// What TensorRT's Python package asks for when it is imported.
void* createInferBuilder_INTERNAL(void*, std::int32_t) noexcept { return nullptr; }
void* createInferRefitter_INTERNAL(void*, void*, std::int32_t) noexcept { return nullptr; }
void* getBuilderPluginRegistry(std::int32_t) noexcept { return nullptr; }
}

#if !__has_include(<NvInferRuntime.h>)

extern "C" void* createInferRuntime_INTERNAL(void*, std::int32_t) noexcept {
    pretended::refuse("built without headers");
}

#else

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <NvInferRuntime.h>

namespace {

using nvinfer1::Dims;

constexpr std::array<std::array<std::int64_t, 3>, 2> profiles = {{{1, 4, 8}, {16, 32, 64}}};
constexpr std::size_t most_functions = 128;

nvinfer1::ILogger* logger = nullptr;
std::map<std::string, int> calls;
std::mutex calls_mutex;

/// Notes a call, and whether it is to fail; one that fails complains.
bool failing(const std::string& function) {
    const std::lock_guard<std::mutex> lock(calls_mutex);
    pretended::note(function);
    if (!pretended::fails(function, calls[function])) return false;
    logger->log(nvinfer1::ILogger::Severity::kERROR, "pretended complaint");
    logger->log(nvinfer1::ILogger::Severity::kWARNING, "pretended warning");
    return true;
}

/// A function of a class of NVIDIA's that nobody is expected to call.
template <class V, std::size_t index> [[noreturn]] void unexpected() {
    pretended::refuse(std::string("function ") + std::to_string(index) + " of " + typeid(V).name() + " is called");
}

/// The table of virtual functions of an object of class V, by the Itanium C++ ABI: only those that are set do
/// something. The headers say where each stands, so a caller that was compiled with others is found out.
template <class V> class Table {
public:
    Table() : Table(std::make_index_sequence<most_functions>{}) {}

    template <class Member, class Function> Table& set(Member member, Function function) {
        static_assert(std::is_member_function_pointer_v<Member>);
        std::ptrdiff_t raw = 0;
        std::memcpy(&raw, &member, sizeof raw);  // of a virtual function: 1 + its offset in the table
        words_[2 + static_cast<std::size_t>(raw - 1) / sizeof(void*)] = reinterpret_cast<void*>(function);
        return *this;
    }
    [[nodiscard]] void* start() { return &words_[2]; }

private:
    template <std::size_t... index> explicit Table(std::index_sequence<index...>)
        : words_{nullptr, const_cast<std::type_info*>(&typeid(V)),
                 reinterpret_cast<void*>(&unexpected<V, index>)...} {}

    std::array<void*, 2 + most_functions> words_;
};

/// What `mImpl` points to: an object of class V by its table.
template <class Owner> struct Impl {
    void* table;
    Owner* owner;
};

template <class Owner> Owner& owner_of(const void* self) { return *static_cast<const Impl<Owner>*>(self)->owner; }

Dims dims(std::initializer_list<std::int64_t> sizes) {
    Dims made{};
    for (const std::int64_t size : sizes) made.d[made.nbDims++] = size;
    return made;
}

Dims shape_of(const std::string& name, std::int64_t n) { return name == "m" ? dims({n}) : dims({n, 3}); }

std::uint16_t bfloat16(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    bits += 0x7FFFU + (bits >> 16U & 1U);  // to nearest, ties to even
    return static_cast<std::uint16_t>(bits >> 16U);
}

#ifdef TRT_MAJOR_RTX
class Blob final : public nvinfer1::IHostMemory {
public:
    explicit Blob(std::string kernels) : bytes_(std::move(kernels)) {
        static Table<nvinfer1::apiv::VHostMemory> table =
            Table<nvinfer1::apiv::VHostMemory>()
                .set(&nvinfer1::apiv::VHostMemory::data, +[](void* self) -> void* { return bytes(self).data(); })
                .set(&nvinfer1::apiv::VHostMemory::size, +[](void* self) { return bytes(self).size(); })
                .set(&nvinfer1::apiv::VHostMemory::type, +[](void*) { return nvinfer1::DataType::kINT8; });
        impl_ = {table.start(), this};
        mImpl = reinterpret_cast<nvinfer1::apiv::VHostMemory*>(&impl_);
    }

private:
    static std::string& bytes(void* self) { return owner_of<Blob>(self).bytes_; }
    std::string bytes_;
    Impl<Blob> impl_{};
};

/// Kernels by number, as bytes.
class Compiled final : public nvinfer1::IRuntimeCache {
public:
    Compiled() {
        static Table<nvinfer1::apiv::VRuntimeCache> table =
            Table<nvinfer1::apiv::VRuntimeCache>()
                .set(&nvinfer1::apiv::VRuntimeCache::serialize,
                     +[](void* self) -> nvinfer1::IHostMemory* {
                         if (failing("IRuntimeCache::serialize")) return nullptr;
                         const auto& found = owner_of<Compiled>(self).kernels;
                         return new Blob(std::string(found.begin(), found.end()));
                     })
                .set(&nvinfer1::apiv::VRuntimeCache::deserialize,
                     +[](void* self, const void* blob, std::size_t size) {
                         if (failing("IRuntimeCache::deserialize")) return false;
                         const auto* const bytes = static_cast<const char*>(blob);
                         owner_of<Compiled>(self).kernels.insert(bytes, bytes + size);
                         pretended::note("kernels " + std::to_string(size));
                         return true;
                     });
        impl_ = {table.start(), this};
        mImpl = reinterpret_cast<nvinfer1::apiv::VRuntimeCache*>(&impl_);
    }
    ~Compiled() override { pretended::note("~IRuntimeCache"); }

    std::set<char> kernels;

private:
    Impl<Compiled> impl_{};
};

class Config final : public nvinfer1::IRuntimeConfig {
public:
    Config() {
        using Strategy = nvinfer1::ExecutionContextAllocationStrategy;
        static Table<nvinfer1::apiv::VRuntimeConfig> table =
            Table<nvinfer1::apiv::VRuntimeConfig>()
                .set(&nvinfer1::apiv::VRuntimeConfig::setExecutionContextAllocationStrategy,
                     +[](void* self, Strategy given) {
                         owner_of<Config>(self).is_user_managed = given == Strategy::kUSER_MANAGED;
                     })
                .set(&nvinfer1::apiv::VRuntimeConfig::setCudaGraphStrategy,
                     +[](void*, nvinfer1::CudaGraphStrategy given) {
                         pretended::note("graphs " + std::to_string(static_cast<int>(given)));
                         return !failing("setCudaGraphStrategy");
                     })
                .set(&nvinfer1::apiv::VRuntimeConfig::createRuntimeCache,
                     +[](void*) -> nvinfer1::IRuntimeCache* {
                         return failing("createRuntimeCache") ? nullptr : new Compiled;
                     })
                .set(&nvinfer1::apiv::VRuntimeConfig::setRuntimeCache,
                     +[](void* self, const nvinfer1::IRuntimeCache& given) {
                         // The real one shares what the caller goes on to hold, too.
                         owner_of<Config>(self).cache = const_cast<Compiled*>(static_cast<const Compiled*>(&given));
                         return !failing("setRuntimeCache");
                     });
        impl_ = {table.start(), this};
        mImpl = reinterpret_cast<nvinfer1::apiv::VRuntimeConfig*>(&impl_);
    }
    ~Config() override { pretended::note("~IRuntimeConfig"); }

    Compiled* cache = nullptr;
    bool is_user_managed = false;

private:
    Impl<Config> impl_{};
};
#endif

constexpr std::int64_t scratch_bytes = 4096;

/// What is alive: TensorRT has an order in which its objects may go.
struct Alive {
    int runtimes = 0;
    int engines = 0;
    int contexts = 0;
};
Alive alive;

class Context final : public nvinfer1::IExecutionContext {
public:
    explicit Context(const nvinfer1::ICudaEngine& engine) : engine_(engine) {
        using V = nvinfer1::apiv::VExecutionContext;
        static Table<V> table = Table<V>()
                                    .set(&V::getEngine, +[](void* self) { return &owner_of<Context>(self).engine_; })
                                    .set(&V::setDeviceMemoryV2, &set_memory)
                                    .set(&V::setOptimizationProfileAsync, &set_profile)
                                    .set(&V::setInputShape, &set_shape)
                                    .set(&V::setTensorAddress, &set_address)
                                    .set(&V::inferShapes, &infer)
                                    .set(&V::getTensorShape, &get_shape)
                                    .set(&V::enqueueV3, &enqueue);
        impl_ = {table.start(), this};
        mImpl = reinterpret_cast<V*>(&impl_);
        ++alive.contexts;
    }
    ~Context() override {
        pretended::note("~IExecutionContext");
        if (alive.engines == 0) pretended::refuse("a context outlives its engine");
        --alive.contexts;
    }

private:
    static void set_memory(void* self, void* memory, std::int64_t bytes) {
        if (bytes != scratch_bytes) pretended::refuse("memory of another size");
        pretended::note("scratch " + std::to_string(reinterpret_cast<std::uintptr_t>(memory)));
        owner_of<Context>(self).memory_ = memory;
    }
    static bool set_profile(void* self, std::int32_t profile, cudaStream_t) {
        owner_of<Context>(self).profile_ = static_cast<std::size_t>(profile);
        pretended::note("profile " + std::to_string(profile));
        return !failing("setOptimizationProfileAsync");
    }
    static bool set_shape(void* self, const char* name, const Dims& given) {
        if (failing("setInputShape")) return false;
        auto& context = owner_of<Context>(self);
        context.shapes_[name] = given;
        const auto& range = profiles.at(context.profile_);
        return given.nbDims > 0 && range[0] <= given.d[0] && given.d[0] <= range[2];
    }
    static bool set_address(void* self, const char* name, void* address) {
        owner_of<Context>(self).addresses_[name] = address;
        return address != nullptr && !failing("setTensorAddress");
    }
    static std::int32_t infer(void* self, std::int32_t count, const char** names) {
        if (failing("inferShapes")) {
            if (count > 0) names[0] = "x";
            return 1;
        }
        const auto& shapes = owner_of<Context>(self).shapes_;
        return shapes.count("x") != 0 && shapes.count("m") != 0 ? 0 : -1;
    }
    static Dims get_shape(void* self, const char* name) {
        const auto& shapes = owner_of<Context>(self).shapes_;
        return failing("getTensorShape") ? dims({-1, 3}) : shapes.at(std::string(name) == "y" ? "x" : name);
    }
    static bool enqueue(void* self, cudaStream_t) {
        if (failing("enqueueV3")) return false;
        auto& context = owner_of<Context>(self);
        if (context.memory_ == nullptr) pretended::refuse("the caller gives the memory, and gave none");
        std::memset(context.memory_, 0xAB, scratch_bytes);
        const auto* const x = static_cast<const float*>(context.addresses_.at("x"));
        const auto* const m = static_cast<const char*>(context.addresses_.at("m"));
        auto* const y = static_cast<std::uint16_t*>(context.addresses_.at("y"));
        const auto factor = std::strtof(pretended::setting("PRETENDED_FACTOR", "2").c_str(), nullptr);
        const auto rows = static_cast<std::size_t>(context.shapes_.at("x").d[0]);
        for (std::size_t at = 0; at < 3 * rows; ++at) y[at] = m[at / 3] != 0 ? bfloat16(factor * x[at]) : 0;
        return true;
    }

    const nvinfer1::ICudaEngine& engine_;  // Python's package asks for it
    void* memory_ = nullptr;
    std::size_t profile_ = 0;
    std::map<std::string, Dims> shapes_;
    std::map<std::string, void*> addresses_;
    Impl<Context> impl_{};
};

class Engine final : public nvinfer1::ICudaEngine {
public:
    Engine() {
        using V = nvinfer1::apiv::VCudaEngine;
        static Table<V> table =
            Table<V>()
                .set(&V::getNbIOTensors, +[](void*) -> std::int32_t { return 3; })
                .set(&V::getIOTensorName, +[](void*, std::int32_t index) { return std::array{"x", "m", "y"}.at(
                                                static_cast<std::size_t>(index)); })
                .set(&V::getTensorDataType, +[](void*, const char* name) { return dtype(name); })
                .set(&V::getTensorShape, +[](void*, const char* name) { return shape_of(name, -1); })
                .set(&V::getTensorIOMode,
                     +[](void*, const char* name) {
                         return *name == 'y' ? nvinfer1::TensorIOMode::kOUTPUT : nvinfer1::TensorIOMode::kINPUT;
                     })
                .set(&V::getDeviceMemorySizeV2, +[](void*) -> std::int64_t { return scratch_bytes; })
                .set(&V::getNbOptimizationProfiles,
                     +[](void*) -> std::int32_t { return static_cast<std::int32_t>(profiles.size()); })
                .set(&V::getProfileShape,
                     +[](void*, const char* name, std::int32_t index, nvinfer1::OptProfileSelector which) {
                         const auto& range = profiles.at(static_cast<std::size_t>(index));
                         const bool least = which == nvinfer1::OptProfileSelector::kMIN;
                         const bool most = which == nvinfer1::OptProfileSelector::kMAX;
                         return shape_of(name, range[least ? 0U : most ? 2U : 1U]);
                     })
#ifdef TRT_MAJOR_RTX
                .set(&V::createRuntimeConfig,
                     +[](void*) -> nvinfer1::IRuntimeConfig* {
                         return failing("createRuntimeConfig") ? nullptr : new Config;
                     })
                .set(&V::createExecutionContextWithRuntimeConfig,
                     +[](void* self, nvinfer1::IRuntimeConfig* config) -> nvinfer1::IExecutionContext* {
                         if (failing("createExecutionContext")) return nullptr;
                         if (!static_cast<Config*>(config)->is_user_managed) pretended::refuse("memory for each context");
                         auto* const cache = static_cast<Config*>(config)->cache;
                         if (cache != nullptr) cache->kernels.insert(static_cast<char>(alive.contexts + 1));
                         return new Context(owner_of<Engine>(self));
                     })
#endif
                .set(&V::createExecutionContext,
                     +[](void* self, nvinfer1::ExecutionContextAllocationStrategy given) -> nvinfer1::IExecutionContext* {
                         using Strategy = nvinfer1::ExecutionContextAllocationStrategy;
                         if (given != Strategy::kUSER_MANAGED) pretended::refuse("memory for each context");
                         return failing("createExecutionContext") ? nullptr : new Context(owner_of<Engine>(self));
                     });
        impl_ = {table.start(), this};
        mImpl = reinterpret_cast<V*>(&impl_);
        ++alive.engines;
    }
    ~Engine() override {
        pretended::note("~ICudaEngine");
        if (alive.contexts != 0) pretended::refuse("an engine goes before its contexts");
        if (alive.runtimes == 0) pretended::refuse("an engine outlives its runtime");
        --alive.engines;
    }

private:
    static nvinfer1::DataType dtype(const std::string& name) {
        return name == "x" ? nvinfer1::DataType::kFLOAT
                           : name == "m" ? nvinfer1::DataType::kBOOL : nvinfer1::DataType::kBF16;
    }
    Impl<Engine> impl_{};
};

class Runtime final : public nvinfer1::IRuntime {
public:
    Runtime() {
        using V = nvinfer1::apiv::VRuntime;
        using Deserialize = nvinfer1::ICudaEngine* (V::*)(const void*, std::size_t) noexcept;
        static Table<V> table =
            Table<V>().set(static_cast<Deserialize>(&V::deserializeCudaEngine),
                           +[](void*, const void* blob, std::size_t size) -> nvinfer1::ICudaEngine* {
                               if (size < 4 || std::memcmp(blob, "vtrt", 4) != 0) pretended::refuse("no engine");
                               return failing("deserializeCudaEngine") ? nullptr : new Engine;
                           });
        impl_ = {table.start(), this};
        mImpl = reinterpret_cast<V*>(&impl_);
        ++alive.runtimes;
    }
    ~Runtime() override {
        pretended::note("~IRuntime");
        if (alive.engines != 0) pretended::refuse("a runtime goes before its engine");
        --alive.runtimes;
    }

private:
    Impl<Runtime> impl_{};
};

}  // namespace

extern "C" nvinfer1::IPluginRegistry* getPluginRegistry() noexcept { return nullptr; }

extern "C" void* createInferRuntime_INTERNAL(void* given, std::int32_t) noexcept {
    logger = static_cast<nvinfer1::ILogger*>(given);
    return failing("createInferRuntime") ? nullptr : static_cast<nvinfer1::IRuntime*>(new Runtime);
}

#endif
