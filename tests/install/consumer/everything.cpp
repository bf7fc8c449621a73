// The program around the header checks that the build file generates; linking it is the test.
int main() { return 0; }
