//! Marks the library as never to be unloaded: PyTorch keeps a pointer into it for ever.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
