// The C interface: every call is caught whole, and its message kept for the thread that made it.
#include <attnport/attnport.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <attnport/error.hpp>
#include <attnport/model.hpp>
#include <attnport/tensor.hpp>

#include "format/text.hpp"

struct attnport_model {
    attnport::Model model;
};

struct attnport_outputs {
    std::vector<attnport::Tensor> tensors;
};

namespace {

using attnport::DType;
using attnport::Error;
using attnport::Place;

// More axes than any dtype of a bundle or runtime has; a rank beyond it is garbage that is not read.
constexpr std::size_t max_rank = 64;
constexpr std::size_t max_items = std::size_t{1} << 31U;

static_assert(ATTNPORT_FLOAT32 == static_cast<int>(DType::Float32));
static_assert(ATTNPORT_FLOAT16 == static_cast<int>(DType::Float16));
static_assert(ATTNPORT_FLOAT64 == static_cast<int>(DType::Float64) && ATTNPORT_INT32 == static_cast<int>(DType::Int32));
static_assert(ATTNPORT_INT64 == static_cast<int>(DType::Int64) && ATTNPORT_BOOL == static_cast<int>(DType::Bool));
static_assert(ATTNPORT_BFLOAT16 == static_cast<int>(DType::BFloat16));
static_assert(ATTNPORT_CPU == static_cast<int>(Place::Cpu) && ATTNPORT_CUDA == static_cast<int>(Place::Cuda));

/// The message of this thread's last failure.
std::string& last_error() {
    static thread_local std::string message;
    return message;
}

attnport_status failed(attnport_status status, const char* message) noexcept {
    try {
        last_error() = message;
    } catch (...) {  // no memory for the message: the status has to do
        last_error().clear();
    }
    return status;
}

attnport_status status_of(int exit_code) noexcept {
    switch (exit_code) {
        case ATTNPORT_BAD_USE: return ATTNPORT_BAD_USE;
        case ATTNPORT_RUNTIME_MISSING: return ATTNPORT_RUNTIME_MISSING;
        case ATTNPORT_NUMBERS_OFF: return ATTNPORT_NUMBERS_OFF;
        case ATTNPORT_INTEGRITY: return ATTNPORT_INTEGRITY;
        default: return ATTNPORT_BUG;
    }
}

/// Runs what may throw anything, and lets nothing through.
template <class Act> attnport_status guarded(const Act& act) noexcept {
    try {
        act();
        return ATTNPORT_OK;
    } catch (const Error& err) {
        return failed(status_of(err.exit_code()), err.what());
    } catch (const std::bad_alloc&) {
        return failed(ATTNPORT_BAD_USE, "there is not enough memory.");
    } catch (const std::exception& err) {
        return failed(ATTNPORT_BUG, err.what());
    } catch (...) {
        return failed(ATTNPORT_BUG, "an error that says nothing about itself.");
    }
}

void require(const void* pointer, const char* what) {
    if (pointer == nullptr) throw Error(std::string(what) + ": got NULL.");
}

/// The number behind an enumerator that another language filled in: it may be none of them.
template <class Enum> unsigned number_of(const Enum& value) noexcept {
    static_assert(sizeof(Enum) == sizeof(unsigned));
    unsigned found = 0;
    std::memcpy(&found, &value, sizeof found);
    return found;
}

std::string text(const char* given) { return given == nullptr ? "" : given; }

attnport::Options options_of(const attnport_options* options) {
    attnport::Options found;
    if (options == nullptr) return found;
    const attnport_options& given = *options;
    if (given.struct_bytes != sizeof(attnport_options)) {
        throw Error("attnport_options: got struct_bytes " + std::to_string(given.struct_bytes) + "; expected " +
                    std::to_string(sizeof(attnport_options)) + ", its sizeof.");
    }
    if (given.threads < 0) {
        throw Error("attnport_options: got threads " + std::to_string(given.threads) + "; expected 0 or more.");
    }
    found.form = text(given.form);
    found.threads = given.threads;
    found.check_files = given.trust_files == 0;
    if (given.public_key != nullptr) found.require_signature = given.public_key;
    found.cache = text(given.cache);
    found.onnxruntime = text(given.onnxruntime);
    if (given.tokenize != nullptr) {
        found.tokenize = [make = given.tokenize, user = given.tokenize_user](const std::string& text,
                                                                             std::int64_t longest) {
            std::vector<std::int64_t> ids(static_cast<std::size_t>(longest));
            const std::int64_t count = make(user, text.c_str(), ids.data(), longest);
            if (count < 0 || count > longest) {
                throw Error("attnport_options: tokenize gave " + std::to_string(count) + "; expected 0 to " +
                            std::to_string(longest) + " ids.");
            }
            ids.resize(static_cast<std::size_t>(count));
            return ids;
        };
    }
    if (found.require_signature && found.require_signature->empty()) {
        throw Error("attnport_options: got an empty public_key; expected the name of a file, or NULL.");
    }
    return found;
}

attnport::Input input_of(const attnport_tensor& given) {
    require(given.name, "the name of a tensor");
    const std::string who = "input " + attnport::reader::quoted(given.name) + ": ";
    if (number_of(given.dtype) > static_cast<unsigned>(ATTNPORT_BFLOAT16)) {
        throw attnport::FeedError(who + "got dtype number " + std::to_string(number_of(given.dtype)) +
                                  "; expected one of attnport_dtype.");
    }
    if (number_of(given.place) > static_cast<unsigned>(ATTNPORT_CUDA)) {
        throw attnport::FeedError(who + "got place number " + std::to_string(number_of(given.place)) +
                                  "; expected one of attnport_place.");
    }
    if (given.rank > max_rank) {
        throw attnport::FeedError(who + "got rank " + std::to_string(given.rank) + "; expected at most " +
                                  std::to_string(max_rank) + ".");
    }
    if (given.rank != 0 && given.shape == nullptr) throw attnport::FeedError(who + "its shape is NULL.");
    attnport::Shape shape;
    if (given.rank != 0) shape.assign(given.shape, given.shape + given.rank);
    if (given.data == nullptr && attnport::elements(shape) != 0) throw attnport::FeedError(who + "its data is NULL.");
    return {given.name, given.data, static_cast<DType>(number_of(given.dtype)), std::move(shape),
            static_cast<Place>(number_of(given.place))};
}

/// Checks what every call has to be given, and views the inputs.
attnport::Inputs inputs_of(const attnport_model* model, const attnport_tensor* inputs, std::size_t count) {
    require(model, "model");
    if (count != 0) require(inputs, "inputs");
    attnport::Inputs found;
    // One more than the model takes is enough to name the one that is too many.
    const std::size_t looked_at = std::min(count, model->model.io().inputs.size() + 1);
    found.reserve(looked_at);
    for (std::size_t index = 0; index < looked_at; ++index) found.push_back(input_of(inputs[index]));
    return found;
}

/// Runs a call that makes outputs. What `outputs` points to is NULL unless all went well.
template <class Act> attnport_status giving(attnport_outputs** outputs, const Act& act) noexcept {
    if (outputs != nullptr) *outputs = nullptr;
    return guarded([&] {
        require(outputs, "where to put the outputs");
        auto made = std::make_unique<attnport_outputs>();
        made->tensors = act();
        *outputs = made.release();
    });
}

attnport::MapOptions map_options_of(std::int64_t tokens, const char* prompt = nullptr) {
    attnport::MapOptions found;
    if (tokens != 0) found.tokens = tokens;
    if (prompt != nullptr) found.prompt = prompt;
    return found;
}

std::vector<std::string> texts_of(const char* const* texts, std::size_t count, const char* name) {
    if (count != 0) require(texts, name);
    std::vector<std::string> found;
    for (std::size_t at = 0; at < count; ++at) {
        require(texts[at], "a text");
        found.emplace_back(texts[at]);
    }
    return found;
}

/// A text that lives as long as the model; "" where there is no model.
template <class Pick> const char* text_of(const attnport_model* model, const Pick& pick) noexcept {
    const char* found = "";
    static_cast<void>(guarded([&] {
        require(model, "model");
        found = pick(model->model);
    }));
    return found;
}

std::vector<attnport::Tensor> tensors_of(const attnport::Outputs& outputs) { return {outputs.begin(), outputs.end()}; }

}  // namespace

extern "C" {

int attnport_abi_version(void) { return ATTNPORT_ABI_VERSION; }

attnport_status attnport_open(const char* folder, const attnport_options* options, attnport_model** model) {
    if (model != nullptr) *model = nullptr;
    return guarded([&] {
        require(folder, "folder");
        require(model, "where to put the model");
        auto made = std::make_unique<attnport_model>(attnport_model{attnport::Model(folder, options_of(options))});
        *model = made.release();
    });
}

void attnport_close(attnport_model* model) {
    static_cast<void>(guarded([model] { const std::unique_ptr<attnport_model> owned(model); }));
}

attnport_status attnport_run(attnport_model* model, const attnport_tensor* inputs, size_t count,
                             attnport_outputs** outputs) {
    return giving(outputs, [&] {
        const attnport::Inputs given = inputs_of(model, inputs, count);
        return tensors_of(model->model.run(given));
    });
}

attnport_status attnport_run_device(attnport_model* model, const attnport_tensor* inputs, size_t count,
                                    attnport_outputs** outputs) {
    return giving(outputs, [&] {
        const attnport::Inputs given = inputs_of(model, inputs, count);
        return tensors_of(model->model.run_device(given));
    });
}

attnport_status attnport_map(attnport_model* model, const attnport_tensor* inputs, size_t count, int64_t tokens,
                             attnport_outputs** outputs) {
    return giving(outputs, [&] {
        const attnport::Inputs given = inputs_of(model, inputs, count);
        return tensors_of(model->model.map(given, map_options_of(tokens)));
    });
}

attnport_status attnport_embed(attnport_model* model, const char* const* texts, size_t count, const char* prompt,
                               int64_t tokens, attnport_outputs** outputs) {
    return giving(outputs, [&] {
        require(model, "model");
        const auto given = texts_of(texts, count, "texts");
        return std::vector<attnport::Tensor>{model->model.embed(given, map_options_of(tokens, prompt))};
    });
}

attnport_status attnport_predict(attnport_model* model, const char* const* texts, const char* const* others,
                                 size_t count, const char* prompt, int64_t tokens, attnport_outputs** outputs) {
    return giving(outputs, [&] {
        require(model, "model");
        const auto options = map_options_of(tokens, prompt);
        const auto given = texts_of(texts, count, "texts");
        return std::vector<attnport::Tensor>{
            others == nullptr ? model->model.predict(given, options)
                              : model->model.predict(given, texts_of(others, count, "others"), options)};
    });
}

attnport_status attnport_masks(attnport_model* model, const int64_t* lengths, size_t count, int64_t size,
                               attnport_outputs** masks) {
    return giving(masks, [&] {
        require(model, "model");
        if (count != 0) require(lengths, "lengths");
        if (count > max_items) throw attnport::FeedError("lengths: got " + std::to_string(count) + " of them.");
        std::vector<std::int64_t> given;
        if (count != 0) given.assign(lengths, lengths + count);
        return model->model.masks(given, size == 0 ? std::nullopt : std::optional<std::int64_t>(size));
    });
}

size_t attnport_outputs_count(const attnport_outputs* outputs) {
    return outputs == nullptr ? 0 : outputs->tensors.size();
}

attnport_status attnport_outputs_get(const attnport_outputs* outputs, size_t index, attnport_tensor* tensor) {
    return guarded([&] {
        require(outputs, "outputs");
        require(tensor, "where to put the tensor");
        if (index >= outputs->tensors.size()) {
            throw Error("got index " + std::to_string(index) + "; there are " +
                        std::to_string(outputs->tensors.size()) + " outputs.");
        }
        const attnport::Tensor& found = outputs->tensors[index];
        *tensor = {found.name().c_str(),
                   static_cast<attnport_dtype>(found.dtype()),
                   static_cast<attnport_place>(found.place()),
                   found.shape().size(),
                   found.shape().data(),
                   found.data()};
    });
}

void attnport_outputs_free(attnport_outputs* outputs) {
    static_cast<void>(guarded([outputs] { const std::unique_ptr<attnport_outputs> owned(outputs); }));
}

const char* attnport_form(const attnport_model* model) {
    return text_of(model, [](const attnport::Model& open) { return open.form().c_str(); });
}

const char* attnport_provider(const attnport_model* model) {
    return text_of(model, [](const attnport::Model& open) { return open.provider().c_str(); });
}

const char* attnport_last_error(void) { return last_error().c_str(); }

}  // extern "C"
