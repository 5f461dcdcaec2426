// What the C++ reader uses of TensorRT-RTX's interface, for the pretended library alone: NVIDIA's headers are in no
// package. Names, types and numbers are theirs, the order of functions is not: what is compiled with this file calls
// the pretended library, and no other. Whether it fits NVIDIA's library, builds with NVIDIA's headers tell
// (ATTNPORT_TENSORRT_HEADERS).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda_runtime_api.h"

#define TRT_MAJOR_RTX 1
#define TRT_MINOR_RTX 7
#define NV_TENSORRT_VERSION 10701

namespace nvinfer1 {

enum class DataType : std::int32_t { kFLOAT, kHALF, kINT8, kINT32, kBOOL, kUINT8, kFP8, kBF16, kINT64, kINT4, kFP4, kE8M0 };
enum class TensorIOMode : std::int32_t { kNONE, kINPUT, kOUTPUT };
enum class OptProfileSelector : std::int32_t { kMIN, kOPT, kMAX };
enum class ExecutionContextAllocationStrategy : std::int32_t { kSTATIC, kON_PROFILE_CHANGE, kUSER_MANAGED };
enum class CudaGraphStrategy : std::int32_t { kDISABLED, kWHOLE_GRAPH_CAPTURE };

struct Dims {
    static constexpr std::int32_t MAX_DIMS{8};
    std::int32_t nbDims;
    std::int64_t d[MAX_DIMS];
};

class IPluginRegistry;
class IExecutionContext;
class ICudaEngine;
class IRuntimeCache;
class IRuntimeConfig;
class IHostMemory;

class ILogger {
public:
    enum class Severity : std::int32_t { kINTERNAL_ERROR, kERROR, kWARNING, kINFO, kVERBOSE };
    virtual void log(Severity severity, const char* message) noexcept = 0;
    virtual ~ILogger() = default;
};

/// The tables that the library fills in, one for each class below.
namespace apiv {
struct VHostMemory {
    virtual void* data() const noexcept = 0;
    virtual std::size_t size() const noexcept = 0;
    virtual DataType type() const noexcept = 0;
};
struct VRuntimeCache {
    virtual IHostMemory* serialize() const noexcept = 0;
    virtual bool deserialize(const void* blob, std::size_t size) noexcept = 0;
};
struct VRuntimeConfig {
    virtual void setExecutionContextAllocationStrategy(ExecutionContextAllocationStrategy strategy) noexcept = 0;
    virtual IRuntimeCache* createRuntimeCache() const noexcept = 0;
    virtual bool setRuntimeCache(const IRuntimeCache& cache) noexcept = 0;
    virtual bool setCudaGraphStrategy(CudaGraphStrategy strategy) noexcept = 0;
};
struct VExecutionContext {
    virtual const ICudaEngine& getEngine() const noexcept = 0;
    virtual void setDeviceMemoryV2(void* memory, std::int64_t size) noexcept = 0;
    virtual bool setOptimizationProfileAsync(std::int32_t profile, cudaStream_t stream) noexcept = 0;
    virtual bool setInputShape(const char* name, const Dims& dims) noexcept = 0;
    virtual bool setTensorAddress(const char* name, void* data) noexcept = 0;
    virtual std::int32_t inferShapes(std::int32_t most, const char** names) noexcept = 0;
    virtual Dims getTensorShape(const char* name) const noexcept = 0;
    virtual bool enqueueV3(cudaStream_t stream) noexcept = 0;
};
struct VCudaEngine {
    virtual std::int32_t getNbIOTensors() const noexcept = 0;
    virtual const char* getIOTensorName(std::int32_t index) const noexcept = 0;
    virtual DataType getTensorDataType(const char* name) const noexcept = 0;
    virtual Dims getTensorShape(const char* name) const noexcept = 0;
    virtual TensorIOMode getTensorIOMode(const char* name) const noexcept = 0;
    virtual std::int64_t getDeviceMemorySizeV2() const noexcept = 0;
    virtual std::int32_t getNbOptimizationProfiles() const noexcept = 0;
    virtual Dims getProfileShape(const char* name, std::int32_t profile, OptProfileSelector which) const noexcept = 0;
    virtual IRuntimeConfig* createRuntimeConfig() noexcept = 0;
    virtual IExecutionContext* createExecutionContext(ExecutionContextAllocationStrategy strategy) noexcept = 0;
    virtual IExecutionContext* createExecutionContextWithRuntimeConfig(IRuntimeConfig* config) noexcept = 0;
};
struct VRuntime {
    virtual ICudaEngine* deserializeCudaEngine(const void* blob, std::size_t size) noexcept = 0;
};
}  // namespace apiv

template <class V> class Object {
public:
    Object() = default;
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;
    virtual ~Object() = default;

protected:
    V* mImpl = nullptr;
};

class IHostMemory : public Object<apiv::VHostMemory> {
public:
    void* data() const noexcept { return mImpl->data(); }
    std::size_t size() const noexcept { return mImpl->size(); }
};

class IRuntimeCache : public Object<apiv::VRuntimeCache> {
public:
    IHostMemory* serialize() const noexcept { return mImpl->serialize(); }
    bool deserialize(const void* blob, std::size_t size) noexcept { return mImpl->deserialize(blob, size); }
};

class IRuntimeConfig : public Object<apiv::VRuntimeConfig> {
public:
    void setExecutionContextAllocationStrategy(ExecutionContextAllocationStrategy strategy) noexcept {
        mImpl->setExecutionContextAllocationStrategy(strategy);
    }
    IRuntimeCache* createRuntimeCache() const noexcept { return mImpl->createRuntimeCache(); }
    bool setRuntimeCache(const IRuntimeCache& cache) noexcept { return mImpl->setRuntimeCache(cache); }
    bool setCudaGraphStrategy(CudaGraphStrategy strategy) noexcept { return mImpl->setCudaGraphStrategy(strategy); }
};

class IExecutionContext : public Object<apiv::VExecutionContext> {
public:
    void setDeviceMemoryV2(void* memory, std::int64_t size) noexcept { mImpl->setDeviceMemoryV2(memory, size); }
    bool setOptimizationProfileAsync(std::int32_t profile, cudaStream_t stream) noexcept {
        return mImpl->setOptimizationProfileAsync(profile, stream);
    }
    bool setInputShape(const char* name, const Dims& dims) noexcept { return mImpl->setInputShape(name, dims); }
    bool setTensorAddress(const char* name, void* data) noexcept { return mImpl->setTensorAddress(name, data); }
    std::int32_t inferShapes(std::int32_t most, const char** names) noexcept { return mImpl->inferShapes(most, names); }
    Dims getTensorShape(const char* name) const noexcept { return mImpl->getTensorShape(name); }
    bool enqueueV3(cudaStream_t stream) noexcept { return mImpl->enqueueV3(stream); }
};

class ICudaEngine : public Object<apiv::VCudaEngine> {
public:
    std::int32_t getNbIOTensors() const noexcept { return mImpl->getNbIOTensors(); }
    const char* getIOTensorName(std::int32_t index) const noexcept { return mImpl->getIOTensorName(index); }
    DataType getTensorDataType(const char* name) const noexcept { return mImpl->getTensorDataType(name); }
    Dims getTensorShape(const char* name) const noexcept { return mImpl->getTensorShape(name); }
    TensorIOMode getTensorIOMode(const char* name) const noexcept { return mImpl->getTensorIOMode(name); }
    std::int64_t getDeviceMemorySizeV2() const noexcept { return mImpl->getDeviceMemorySizeV2(); }
    std::int32_t getNbOptimizationProfiles() const noexcept { return mImpl->getNbOptimizationProfiles(); }
    Dims getProfileShape(const char* name, std::int32_t profile, OptProfileSelector which) const noexcept {
        return mImpl->getProfileShape(name, profile, which);
    }
    IRuntimeConfig* createRuntimeConfig() noexcept { return mImpl->createRuntimeConfig(); }
    IExecutionContext* createExecutionContext(ExecutionContextAllocationStrategy strategy) noexcept {
        return mImpl->createExecutionContext(strategy);
    }
    IExecutionContext* createExecutionContext(IRuntimeConfig* config) noexcept {
        return mImpl->createExecutionContextWithRuntimeConfig(config);
    }
};

class IRuntime : public Object<apiv::VRuntime> {
public:
    ICudaEngine* deserializeCudaEngine(const void* blob, std::size_t size) noexcept {
        return mImpl->deserializeCudaEngine(blob, size);
    }
};

}  // namespace nvinfer1
