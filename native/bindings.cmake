# slackline/_native: the Python module over slackline_core.
# From Python 3.12 on the module keeps to the stable ABI, so one wheel serves all later versions.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
find_package(nanobind CONFIG REQUIRED)
file(GLOB binding_sources CONFIGURE_DEPENDS native/bindings/*.cc)
nanobind_add_module(_native NB_STATIC STABLE_ABI ${binding_sources})
target_link_libraries(_native PRIVATE slackline_core)
install(TARGETS _native LIBRARY DESTINATION slackline)
