// Runs a bundle on inputs that nobody may write to, and that are gone behind each call: pages of their own.
//
//     borrowed FOLDER shapes     many calls, of a shape that changes with every second one
//     borrowed FOLDER BYTES      two calls of one input of so many bytes; prints by how many the memory of the process grew
//
// The bundle is of one input, float32 `x` [batch, seq], whose output `greatest` [batch] is the greatest of each row.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>

#include <attnport/bundle.hpp>

#include "ended.hpp"

namespace {

using attnport::Model;

/// Pages of zeros. Where nobody writes they are none of the process's own memory, however many there are. Allocated
/// memory would not do: neither runtime's library is looked at by a sanitizer, and what it reads there goes unseen.
class Pages {
public:
    Pages(std::int64_t batch, std::int64_t seq)
        : batch_(batch), seq_(seq), bytes_(static_cast<std::size_t>(batch * seq) * sizeof(float)),
          data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
        if (data_ == MAP_FAILED) throw std::bad_alloc();
    }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    /// The addresses are kept: given to the next call, they would hide that they were remembered.
    ~Pages() { mmap(data_, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0); }

    void fill(int seed) {
        auto* const values = static_cast<float*>(data_);
        for (std::size_t at = 0; at < bytes_ / sizeof(float); ++at) {
            values[at] = static_cast<float>((at * 31 + static_cast<std::size_t>(seed) * 7) % 1009) - 1010.0F;
        }
    }
    [[nodiscard]] std::vector<float> greatest() const {
        const auto* const values = static_cast<const float*>(data_);
        std::vector<float> found;
        for (std::int64_t row = 0; row < batch_; ++row) {
            found.push_back(*std::max_element(values + row * seq_, values + (row + 1) * seq_));
        }
        return found;
    }
    [[nodiscard]] attnport::Inputs inputs() const {
        mprotect(data_, bytes_, PROT_READ);
        return {{"x", static_cast<const void*>(data_), attnport::DType::Float32, {batch_, seq_}}};
    }

private:
    std::int64_t batch_;
    std::int64_t seq_;
    std::size_t bytes_;
    void* data_;
};

attnport::Outputs run(const Model& model, const Pages& pages, bool on_device) {
    return on_device ? model.run_device(pages.inputs()) : model.run(pages.inputs());
}

bool is(const attnport::Outputs& outputs, const std::vector<float>& wanted) {
    const attnport::Tensor& found = outputs.at("greatest");
    return found.size() == wanted.size() && std::equal(wanted.begin(), wanted.end(), found.data<float>());
}

int shapes(const Model& model) {
    constexpr int calls = 300;
    int wrong = 0;
    for (int call = 0; call < calls; ++call) {
        std::vector<float> wanted;
        const attnport::Outputs outputs = [&] {
            Pages pages(1 + call / 2 % 5, 1 + call / 2 * 37 % 701);
            pages.fill(call);
            wanted = pages.greatest();
            return run(model, pages, call % 2 != 0);
        }();
        if (!is(outputs, wanted)) ++wrong;
    }
    std::cout << calls << " calls, " << wrong << " wrong\n";
    return wrong == 0 ? 0 : 4;
}

/// The most memory that the process ever had. getrusage tells that of whoever started it, if that is more.
std::int64_t peak_bytes() {
    std::ifstream file("/proc/self/status");
    for (std::string word; file >> word;) {
        if (word != "VmHWM:") continue;
        std::int64_t kibibytes = 0;
        file >> kibibytes;
        return kibibytes * 1024;
    }
    throw std::runtime_error("no VmHWM");
}

int one_large(const Model& model, std::int64_t bytes) {
    const Pages pages(1, bytes / static_cast<std::int64_t>(sizeof(float)));
    const std::int64_t before = peak_bytes();
    for (const bool on_device : {false, true}) {
        if (!is(run(model, pages, on_device), {0.0F})) return 4;
    }
    std::cout << peak_bytes() - before << '\n';
    return 0;
}

}  // namespace

int main(int count, char** values) {
    if (count != 3) return 64;
    const std::string what = values[2];
    return ended([&] {
        const Model model(values[1]);
        return what == "shapes" ? shapes(model) : one_large(model, std::stoll(what));
    });
}
