// A form that ONNX Runtime has open. Only for files that are compiled with its headers.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <attnport/contract.hpp>

#include "onnxruntime_library.hpp"
#include "session.hpp"

namespace attnport::reader {

/// The provider that a session was made for, and where it computes.
struct Chosen {
    std::string provider;
    Place place = Place::Cpu;
};

class OnnxRuntimeSession final : public Session {
public:
    OnnxRuntimeSession(OnnxRuntime& library, OrtOwned<OrtSession> session, const IO& io, Chosen chosen);

    std::vector<Tensor> run(const std::vector<Input>& given) override;
    std::vector<Tensor> run_device(const std::vector<Input>& given) override;
    [[nodiscard]] bool writes_in_place() const override { return writes_in_place_; }
    std::vector<Tensor> run_in_place(const std::vector<Input>& given,
                                     const std::vector<std::optional<std::size_t>>& shared) override;

private:
    [[nodiscard]] std::vector<Port> ports(bool of_inputs) const;
    [[nodiscard]] Port port(const std::string& called, const OrtTypeInfo* info) const;
    [[nodiscard]] OrtOwned<OrtValue> value(const Input& input) const;
    [[nodiscard]] std::vector<OrtOwned<OrtValue>> values(const std::vector<Input>& given) const;
    [[nodiscard]] Tensor tensor(const std::string& called, OrtOwned<OrtValue> value,
                                const std::vector<Input>& given) const;
    [[nodiscard]] std::vector<Tensor> tensors(OrtValue* const* values, const std::vector<Input>& given,
                                              const std::vector<std::optional<std::size_t>>& shared) const;
    [[nodiscard]] bool says_in_place() const;
    void require_one_each(const std::vector<Input>& given) const;

    OnnxRuntime& library_;
    const OrtApi& api_;
    // Shared with outputs that stay on a device: the memory there is the session's.
    std::shared_ptr<OrtSession> session_;
    std::vector<std::string> input_names_;
    std::vector<std::string> output_names_;
    std::vector<const char*> input_words_;
    std::vector<const char*> output_words_;
    OrtOwned<OrtMemoryInfo> on_cpu_;
    OrtOwned<OrtMemoryInfo> on_device_;
    OrtOwned<OrtRunOptions> run_options_;
    bool writes_in_place_ = false;
};

}  // namespace attnport::reader
