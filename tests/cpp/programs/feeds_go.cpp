// Runs a bundle whose model gives its mask on, and reads the outputs when the memory of the feeds is gone.
//
//     feeds_go APP
#include <cstdint>
#include <iostream>
#include <memory>
#include <vector>

#include <attnport/bundle.hpp>

namespace {

using Values = std::vector<std::int64_t>;

void print(const attnport::Outputs& outputs) {
    const attnport::Tensor& mask = outputs.at("attention_mask");
    for (std::size_t at = 0; at < mask.size(); ++at) std::cout << mask.data<std::int64_t>()[at] << ' ';
    std::cout << '\n';
}

void run(const attnport::Model& model, bool on_device) {
    auto ids = std::make_unique<Values>(Values{3, 9, 49});
    auto mask = std::make_unique<Values>(Values{1, 1, 0});
    const attnport::Inputs inputs{{"ids", *ids, {1, 3}}, {"attention_mask", *mask, {1, 3}}};
    const attnport::Outputs outputs = on_device ? model.run_device(inputs) : model.run(inputs);
    ids.reset();
    mask.reset();
    print(outputs);
}

}  // namespace

int main(int count, char** words) {
    if (count != 2) return 64;
    try {
        const attnport::Model model(words[1]);
        run(model, false);
        run(model, true);
        return 0;
    } catch (const attnport::Error& err) {
        std::cerr << err.what() << '\n';
        return err.exit_code();
    }
}
