/* In place of the generated header: ONCE_MODULES says where the module is, so these folders are empty names. */
#define ONCE_BUILD_FOLDER "/nowhere"
#define ONCE_BUILD_MODULES "/nowhere"
#define ONCE_INSTALLED_MODULES "/nowhere"
