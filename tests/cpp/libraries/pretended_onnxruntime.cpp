// ONNX Runtime with a CUDA provider that is the CPU's: the library in PRETENDED_ONNXRUNTIME, with some functions replaced.
// The pretended driver's memory is the host's, so that the CPU reads and writes what is on the device.
//
//     PRETENDED_GRAPHS  what fails: opening, capturing, calling for the first three runs without a graph, or numbers for
//                       a graph that gives others
//     PRETENDED_LOG     of sessions (`session 1` captures graphs) and runs (`plain`, `graph NUMBER`)
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#if __has_include(<onnxruntime_c_api.h>)

#include <onnxruntime_c_api.h>

#include "pretended.hpp"

namespace {

struct State {
    const OrtApiBase* base = nullptr;
    const OrtApi* real = nullptr;
    OrtApi api{};
    std::mutex mutex;
    bool captures = false;                                   ///< of the options that were made last
    std::map<const OrtRunOptions*, std::string> numbers;     ///< of graphs, by the options of a run
    std::map<const OrtIoBinding*, const OrtValue*> outputs;  ///< the last one that was bound
};

State& state() {
    static State* const made = new State;
    return *made;
}

bool fails(const char* where) { return pretended::setting("PRETENDED_GRAPHS") == where; }

OrtStatus* failure(const char* words) { return state().real->CreateStatus(ORT_FAIL, words); }

OrtStatus* ORT_API_CALL providers(char*** names, int* count) noexcept {
    static char called[] = "CUDAExecutionProvider";
    static char* all[] = {called};
    *names = all;
    *count = 1;
    return nullptr;
}

OrtStatus* ORT_API_CALL no_providers(char**, int) noexcept { return nullptr; }

OrtStatus* ORT_API_CALL make_options(OrtCUDAProviderOptionsV2** made) noexcept {
    *made = reinterpret_cast<OrtCUDAProviderOptionsV2*>(&state());
    state().captures = false;
    return nullptr;
}

OrtStatus* ORT_API_CALL set_options(OrtCUDAProviderOptionsV2*, const char* const* keys, const char* const* values,
                                    std::size_t count) noexcept {
    for (std::size_t at = 0; at < count; ++at) {
        if (std::strcmp(keys[at], "enable_cuda_graph") == 0) state().captures = std::strcmp(values[at], "1") == 0;
    }
    return nullptr;
}

void ORT_API_CALL drop_options(OrtCUDAProviderOptionsV2*) noexcept {}

OrtStatus* ORT_API_CALL append(OrtSessionOptions*, const OrtCUDAProviderOptionsV2*) noexcept { return nullptr; }

OrtStatus* ORT_API_CALL open(const OrtEnv* env, const char* path, const OrtSessionOptions* options,
                             OrtSession** made) noexcept {
    if (state().captures && fails("opening")) return failure("nodes are left to the processor");
    pretended::note(state().captures ? "session 1" : "session 0");
    return state().real->CreateSession(env, path, options, made);
}

OrtStatus* ORT_API_CALL memory(const char*, enum OrtAllocatorType kind, int, enum OrtMemType type,
                               OrtMemoryInfo** made) noexcept {
    return state().real->CreateCpuMemoryInfo(kind, type, made);
}

OrtStatus* ORT_API_CALL add(OrtRunOptions* options, const char* key, const char* text) noexcept {
    const std::lock_guard<std::mutex> lock(state().mutex);
    if (std::strcmp(key, "gpu_graph_id") == 0) state().numbers[options] = text;
    return state().real->AddRunConfigEntry(options, key, text);
}

OrtStatus* ORT_API_CALL run(OrtSession* session, const OrtRunOptions* options, const char* const* names,
                            const OrtValue* const* inputs, std::size_t given, const char* const* wanted,
                            std::size_t count, OrtValue** outputs) noexcept {
    pretended::note("plain");
    static std::atomic<int> calls{0};
    if (fails("calling") && ++calls <= 3) return failure("a value is out of bounds");
    return state().real->Run(session, options, names, inputs, given, wanted, count, outputs);
}

OrtStatus* ORT_API_CALL bind(OrtIoBinding* binding, const char* name, const OrtValue* output) noexcept {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().outputs[binding] = output;
    return state().real->BindOutput(binding, name, output);
}

OrtStatus* ORT_API_CALL run_bound(OrtSession* session, const OrtRunOptions* options,
                                  const OrtIoBinding* binding) noexcept {
    State& s = state();
    std::string number = "-1";
    const OrtValue* output = nullptr;
    {
        const std::lock_guard<std::mutex> lock(s.mutex);
        number = s.numbers[options];
        output = s.outputs[binding];
    }
    pretended::note(number == "-1" ? "bound" : "graph " + number);
    if (number != "-1" && fails("capturing")) return failure("the stream is lost");
    OrtStatus* const status = s.real->RunWithBinding(session, options, binding);
    if (status == nullptr && number != "-1" && fails("numbers")) {
        void* data = nullptr;
        if (s.real->GetTensorMutableData(const_cast<OrtValue*>(output), &data) == nullptr) {
            *static_cast<unsigned char*>(data) ^= 1U;
        }
    }
    return status;
}

const OrtApi* ORT_API_CALL interface_of(std::uint32_t version) noexcept {
    State& s = state();
    s.real = s.base->GetApi(version);
    if (s.real == nullptr) return nullptr;
    s.api = *s.real;
    s.api.GetAvailableProviders = providers;
    s.api.ReleaseAvailableProviders = no_providers;
    s.api.CreateCUDAProviderOptions = make_options;
    s.api.UpdateCUDAProviderOptions = set_options;
    s.api.ReleaseCUDAProviderOptions = drop_options;
    s.api.SessionOptionsAppendExecutionProvider_CUDA_V2 = append;
    s.api.CreateSession = open;
    s.api.CreateMemoryInfo = memory;
    s.api.AddRunConfigEntry = add;
    s.api.Run = run;
    s.api.BindOutput = bind;
    s.api.RunWithBinding = run_bound;
    return &s.api;
}

const char* ORT_API_CALL version() noexcept { return state().base->GetVersionString(); }

}  // namespace

extern "C" const OrtApiBase* OrtGetApiBase() noexcept {
    static const OrtApiBase base{interface_of, version};
    if (state().base == nullptr) {
        void* const library = dlopen(pretended::setting("PRETENDED_ONNXRUNTIME").c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) pretended::refuse(dlerror());
        const auto entry = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
        state().base = entry();
    }
    return &base;
}

#endif
