// Times Model::run of the C++ reader and the same call made by hand through ONNX Runtime's C interface, in turns, in one
// process, on the same library, file and inputs. See cpp_overhead.py, which builds and reads it.
//
//     cpp_overhead APP FILE LIBRARY CALLS ROUNDS BATCH
//
// prints a line for each round: the median nanoseconds of its calls by hand and of those of the reader.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <onnxruntime_c_api.h>

#include <attnport/bundle.hpp>

namespace {

constexpr std::int64_t width = 16;

/// What an application without the reader would write: names and memory info made once, a value for each call.
class ByHand {
public:
    ByHand(const std::string& library, const std::string& file) {
        void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        using Entry = const OrtApiBase* (*)();
        const auto entry = handle == nullptr ? nullptr : reinterpret_cast<Entry>(dlsym(handle, "OrtGetApiBase"));
        if (entry == nullptr) throw std::runtime_error(library);
        api_ = entry()->GetApi(ORT_API_VERSION);
        check(api_->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "by_hand", &env_));
        OrtSessionOptions* options = nullptr;
        check(api_->CreateSessionOptions(&options));
        check(api_->SetIntraOpNumThreads(options, 1));
        check(api_->CreateSession(env_, file.c_str(), options, &session_));
        api_->ReleaseSessionOptions(options);
        check(api_->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory_));
    }
    ByHand(const ByHand&) = delete;
    ByHand& operator=(const ByHand&) = delete;
    ~ByHand() {
        api_->ReleaseMemoryInfo(memory_);
        api_->ReleaseSession(session_);
        api_->ReleaseEnv(env_);
    }

    float run(const std::vector<float>& x, std::int64_t batch) const {
        const std::int64_t shape[] = {batch, width};
        const char* inputs[] = {"x"};
        const char* outputs[] = {"y"};
        OrtValue* given = nullptr;
        OrtValue* found = nullptr;
        check(api_->CreateTensorWithDataAsOrtValue(memory_, const_cast<float*>(x.data()), x.size() * sizeof(float),
                                                   shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &given));
        check(api_->Run(session_, nullptr, inputs, &given, 1, outputs, 1, &found));
        void* data = nullptr;
        check(api_->GetTensorMutableData(found, &data));
        const float first = *static_cast<const float*>(data);
        api_->ReleaseValue(found);
        api_->ReleaseValue(given);
        return first;
    }

private:
    void check(OrtStatus* status) const {
        if (status != nullptr) throw std::runtime_error(api_->GetErrorMessage(status));
    }

    const OrtApi* api_ = nullptr;
    OrtEnv* env_ = nullptr;
    OrtSession* session_ = nullptr;
    OrtMemoryInfo* memory_ = nullptr;
};

template <class Call> std::int64_t timed(const Call& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

std::int64_t median(std::vector<std::int64_t>& samples) {
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    return *middle;
}

}  // namespace

int main(int count, char** words) {
    if (count != 7) return 2;
    attnport::Options options;
    options.threads = 1;
    options.onnxruntime = words[3];
    const attnport::Model model(words[1], options);
    const ByHand by_hand(words[3], words[2]);
    const int calls = std::atoi(words[4]);
    const int rounds = std::atoi(words[5]);
    const std::int64_t batch = std::atoi(words[6]);
    const std::vector<float> x(static_cast<std::size_t>(batch * width), 1.5F);
    float sum = 0;
    const auto hand = [&] { sum += by_hand.run(x, batch); };
    // The whole of what an application writes for a call, its list of inputs as well.
    const auto reader = [&] { sum += *model.run({{"x", x, {batch, width}}})[0].data<float>(); };
    std::mt19937 random(0);
    for (int round = -2; round < rounds; ++round) {  // two to warm up
        std::vector<std::int64_t> hands;
        std::vector<std::int64_t> readers;
        for (int call = 0; call < calls; ++call) {
            const bool hand_first = (random() & 1U) != 0;
            if (hand_first) hands.push_back(timed(hand));
            readers.push_back(timed(reader));
            if (!hand_first) hands.push_back(timed(hand));
        }
        if (round >= 0) std::cout << median(hands) << ' ' << median(readers) << '\n';
    }
    return sum == 0 ? 1 : 0;
}
