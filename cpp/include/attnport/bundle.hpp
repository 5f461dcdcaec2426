// Reads a bundle: checks every file, opens the model, checks what goes in. One include for all of it.
//
//     attnport::Model model("app");
//     auto outputs = model.run({{"x", values, {1, 16}}});
#pragma once

#include <attnport/contract.hpp>   // IWYU pragma: export
#include <attnport/error.hpp>      // IWYU pragma: export
#include <attnport/model.hpp>      // IWYU pragma: export
#include <attnport/selftest.hpp>   // IWYU pragma: export
#include <attnport/tensor.hpp>     // IWYU pragma: export
#include <attnport/tokenizer.hpp>  // IWYU pragma: export
