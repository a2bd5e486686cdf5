//! Writes the seeds of every target to `corpus/TARGET`, where cargo-fuzz looks for them.

fn main() -> std::io::Result<()> {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in varve_fuzz::TARGETS {
        let dir = corpus.join(target.name);
        std::fs::create_dir_all(&dir)?;
        for (n, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(dir.join(format!("seed-{n}")), seed)?;
        }
    }
    Ok(())
}
