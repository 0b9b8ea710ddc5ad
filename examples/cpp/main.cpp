#include "base/image.hpp"

int main() { return 0; }
