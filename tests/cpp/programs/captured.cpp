// captured APP FORM run|map BATCH,LENGTH,SEED ...: runs the tiny attention on ids that a seed draws; a line for each call
// has the outputs' bytes as one number, or what was wrong with it. `map` gives BATCH items of LENGTH tokens with padding behind them, 16 places in all.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <attnport/bundle.hpp>
#include <attnport/error.hpp>

#include "ended.hpp"

namespace {

std::uint64_t digest(const attnport::Outputs& outputs) {
    std::uint64_t found = 14695981039346656037U;
    for (const attnport::Tensor& output : outputs) {
        const auto* const bytes = static_cast<const unsigned char*>(output.data());
        for (std::size_t at = 0; at < output.size() * attnport::size_bytes(output.dtype()); ++at) {
            found = (found ^ bytes[at]) * 1099511628211U;
        }
    }
    return found;
}

int run(const std::vector<std::string>& arguments) {
    attnport::Options options;
    options.form = arguments.at(1);
    options.threads = 1;
    const attnport::Model model(arguments.at(0), options);
    for (std::size_t at = 3; at < arguments.size(); ++at) {
        std::stringstream stream(arguments[at]);
        std::vector<std::int64_t> numbers;
        for (std::string part; std::getline(stream, part, ',');) numbers.push_back(std::stoll(part));
        const bool maps = arguments.at(2) == "map";
        const attnport::Shape shape{numbers.at(0), maps ? 16 : numbers.at(1)};
        std::vector<std::int64_t> ids(static_cast<std::size_t>(shape[0] * shape[1]));
        for (std::size_t place = 0; place < ids.size(); ++place) {
            ids[place] = (static_cast<std::int64_t>(place * place) + 7 * numbers.at(2)) % 50;
        }
        std::vector<std::int64_t> mask(ids.size());
        for (std::size_t place = 0; place < mask.size(); ++place) {
            mask[place] = static_cast<std::int64_t>(place) % shape[1] < numbers.at(1) ? 1 : 0;
        }
        const attnport::Inputs inputs{{"ids", ids, shape}, {"attention_mask", mask, shape}};
        try {
            std::cout << digest(maps ? model.map(inputs) : model.run(inputs)) << '\n';
        } catch (const attnport::Error& err) {
            std::cout << err.what() << '\n';
        }
    }
    return 0;
}

}  // namespace

int main(int count, char** values) {
    return ended([&] { return run({values + 1, values + count}); });
}
