# slackline/_native: the Python module over slackline_core.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(nanobind CONFIG REQUIRED)
file(GLOB binding_sources CONFIGURE_DEPENDS native/bindings/*.cc)
nanobind_add_module(_native NB_STATIC ${binding_sources})
target_link_libraries(_native PRIVATE slackline_core)
install(TARGETS _native LIBRARY DESTINATION slackline)
