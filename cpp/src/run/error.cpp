#include <attnport/error.hpp>

namespace attnport {

int Error::exit_code() const noexcept { return 2; }
int FeedError::exit_code() const noexcept { return 2; }
int RuntimeMissing::exit_code() const noexcept { return 3; }
int NumbersOff::exit_code() const noexcept { return 4; }
int NotExpected::exit_code() const noexcept { return 1; }
int IntegrityError::exit_code() const noexcept { return 6; }

}  // namespace attnport
