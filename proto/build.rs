//! Compiles the `.proto` files, in Rust, so that a fresh machine needs no `protoc`.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=frozen");
    let descriptors = protox::compile(["memtape/v1/memtape.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".memtape.v1.UploadChunk.data")
        .compile_fds(descriptors)?;
    if std::env::var_os("CARGO_FEATURE_FROZEN").is_some() {
        let descriptors = protox::compile(["memtape-1.0.proto"], ["frozen"])?;
        let folder = PathBuf::from(std::env::var("OUT_DIR")?).join("frozen-1.0");
        std::fs::create_dir_all(&folder)?;
        tonic_prost_build::configure()
            .bytes(".memtape.v1.UploadChunk.data")
            .out_dir(folder)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
