#include <attnport/error.hpp>

namespace attnport {

// Out of line, so that each class has one type_info and can be caught across a shared library's border.
Error::~Error() = default;
FeedError::~FeedError() = default;
RuntimeMissing::~RuntimeMissing() = default;
NotExpected::~NotExpected() = default;
NumbersOff::~NumbersOff() = default;
IntegrityError::~IntegrityError() = default;

}  // namespace attnport
