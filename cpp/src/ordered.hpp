// A map that keeps the order in which its keys were written, as JSON objects have it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attnport::reader {

template <class T> class Ordered {
public:
    using Item = std::pair<std::string, T>;

    /// Whether the key is new; one that is there already stays as it is.
    bool add(std::string key, T value) {
        if (!at_.emplace(key, items_.size()).second) return false;
        items_.emplace_back(std::move(key), std::move(value));
        return true;
    }
    [[nodiscard]] const T* find(std::string_view key) const {
        const auto found = at_.find(key);
        return found == at_.end() ? nullptr : &items_[found->second].second;
    }
    [[nodiscard]] bool has(std::string_view key) const { return at_.count(key) != 0; }
    [[nodiscard]] std::size_t size() const noexcept { return items_.size(); }
    [[nodiscard]] bool empty() const noexcept { return items_.empty(); }
    [[nodiscard]] auto begin() const noexcept { return items_.begin(); }
    [[nodiscard]] auto end() const noexcept { return items_.end(); }

private:
    std::vector<Item> items_;
    // No hash table: who writes the keys of a file could choose such that all have one hash.
    std::map<std::string, std::size_t, std::less<>> at_;
};

}  // namespace attnport::reader
