#include "pickle/geometry.h"

#include <gtest/gtest.h>
