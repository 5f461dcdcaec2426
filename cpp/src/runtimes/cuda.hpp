// The few calls of the CUDA driver that an engine needs, and what tells one GPU from another. The driver's library
// comes with every GPU and its C interface is stable, so it is loaded at run time and no CUDA toolkit is asked for.
// Source: CUDA Driver API reference, https://docs.nvidia.com/cuda/cuda-driver-api/; the driver's release comes from
// NVML, https://docs.nvidia.com/deploy/nvml-api/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtimes/session.hpp"

namespace attnport::reader::cuda {

/// An address on a device: CUdeviceptr.
using Address = std::uint64_t;

/// The driver's release, such as `580.65.06`; empty where it cannot be asked.
[[nodiscard]] std::string driver_release();

/// The first GPU, its primary context (shared with every other CUDA library in the process) and one stream. Whoever
/// holds memory of it holds it too. Every call throws RuntimeMissing with the driver's own name of the error.
class Device {
public:
    /// Asks the driver for its devices. Throws RuntimeMissing: no driver, or no GPU.
    Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    /// Gives stream and context back.
    ~Device();

    /// Takes the context and makes the stream; nothing is held where this fails.
    void open();

    [[nodiscard]] const std::string& name() const noexcept { return name_; }  ///< as the driver calls it
    [[nodiscard]] int sm() const noexcept { return sm_; }                     ///< compute capability; `86` is 8.6
    [[nodiscard]] const std::string& uuid() const noexcept { return uuid_; }  ///< 32 hex digits
    [[nodiscard]] void* stream() const noexcept { return stream_; }           ///< a cudaStream_t is a CUstream

    /// Copies to the device, in stream order.
    void upload(Address to, const void* from, std::size_t bytes) const;
    /// Copies from the device; it is there after `synchronize`.
    void download(void* to, Address from, std::size_t bytes) const;
    /// Waits for everything in the stream.
    void synchronize() const;
    /// Waits for everything in the context: what others write in streams of their own is there then.
    void synchronize_all() const;
    /// Whether an address is memory of this device.
    [[nodiscard]] bool owns(Address address) const;

private:
    friend class Bound;
    friend class Memory;
    struct Driver;
    void call(const char* function, int status) const;
    [[nodiscard]] int attribute(int which) const;
    void close() noexcept;

    std::shared_ptr<const Driver> driver_;
    std::string name_;
    std::string uuid_;
    int sm_ = 0;
    int device_ = 0;
    void* context_ = nullptr;
    void* stream_ = nullptr;
};

/// Makes a device's context current in this thread, and the caller's own one again at its end.
class Bound {
public:
    explicit Bound(const Device& device);
    Bound(const Bound&) = delete;
    Bound& operator=(const Bound&) = delete;
    ~Bound();

private:
    const Device& device_;
    void* before_ = nullptr;
};

/// Memory on a device, freed at its end from whatever thread that is; at least one byte.
class Memory {
public:
    Memory(std::shared_ptr<const Device> device, std::size_t bytes);
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory();

    [[nodiscard]] Address address() const noexcept { return address_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

private:
    std::shared_ptr<const Device> device_;
    Address address_ = 0;
    std::size_t bytes_ = 0;
};

/// The GPU and its driver: both decide what is compiled for it.
[[nodiscard]] Machine machine(const Device& device);

}  // namespace attnport::reader::cuda
