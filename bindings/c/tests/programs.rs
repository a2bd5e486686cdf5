//! C programs against the library: compiled without a warning, run, and run under valgrind; and against the library as it
//! is installed. Where there is no gcc, no valgrind or no pkg-config, a line says what was left out.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A directory of the test's own, gone at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("varve-c-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory");
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether there is such a program; if not, says so.
fn found(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success());
    if !there {
        println!("{program} is not installed: what needs it was left out");
    }
    there
}

/// What the program said, if it ended well.
fn well(what: &str, out: &Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{what}: {}\n{stdout}\n{stderr}", out.status);
    stdout.into_owned()
}

/// Compiles a program against the shared library that cargo made beside this test.
fn compile(source: &str, scratch: &Scratch) -> PathBuf {
    let libraries = std::env::current_exe().expect("this test").parent().expect("its directory").to_path_buf();
    assert!(libraries.join("libvarve_c.so").exists(), "no libvarve_c.so in {}", libraries.display());
    let program = scratch.0.join("program");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread"]);
    gcc.arg("-I").arg(here().join("include")).arg(here().join(source)).arg("-o").arg(&program);
    gcc.arg("-L").arg(&libraries).arg("-lvarve_c").arg(format!("-Wl,-rpath,{}", libraries.display()));
    well("gcc", &gcc.output().expect("gcc runs"));
    program
}

/// The program under valgrind, which must not find a wrong access or a leak. It is not asked for values that were never
/// set: an optimizer may look at what an empty `Option` would hold before it asks whether it is empty. (3.19 knows
/// io_uring well enough. It cannot follow a fork of a program with threads, so that part is left out there.)
fn valgrind(program: &Path) -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind.args([
        "--quiet",
        "--error-exitcode=99",
        "--undef-value-errors=no",
        "--leak-check=full",
        "--show-leak-kinds=definite",
        "--errors-for-leak-kinds=definite",
    ]);
    valgrind.arg(program);
    valgrind
}

const COUNTED: &str = "last: letter 19\ndone: 20\nlatest: letter 19\nrows: 10\n";

#[test]
fn the_example_compiles_runs_and_leaks_nothing() {
    if !found("gcc") {
        return;
    }
    let scratch = Scratch::new("counter");
    let program = compile("examples/counter.c", &scratch);
    assert_eq!(well("counter", &Command::new(&program).arg(scratch.0.join("a")).output().expect("runs")), COUNTED);
    if found("valgrind") {
        let out = valgrind(&program).arg(scratch.0.join("b")).output().expect("runs");
        assert_eq!(well("valgrind", &out), COUNTED);
    }
}

#[test]
fn misuse_is_an_error_and_no_crash() {
    if !found("gcc") {
        return;
    }
    let scratch = Scratch::new("misuse");
    let program = compile("tests/misuse.c", &scratch);
    well("misuse", &Command::new(&program).arg(scratch.0.join("a")).output().expect("runs"));
    if found("valgrind") {
        well("valgrind", &valgrind(&program).arg(scratch.0.join("b")).arg("nofork").output().expect("runs"));
    }
}

#[test]
fn the_page_has_the_example_that_works() {
    let (page, example) = (here().join("README.md"), here().join("examples/hello.c"));
    let [page, example] = [page, example].map(|path| std::fs::read_to_string(path).expect("text"));
    let block = page.split_once("```c\n").and_then(|(_, rest)| rest.split_once("```")).expect("an example").0;
    assert_eq!(block, example, "examples/hello.c is the example of README.md");
    if !found("gcc") {
        return;
    }
    let scratch = Scratch::new("hello");
    let program = compile("examples/hello.c", &scratch);
    let out = Command::new(&program).arg(scratch.0.join("bank")).output().expect("runs");
    assert_eq!(well("hello", &out), "alice has 10\n");
}

/// What pkg-config says of the installed library.
fn pkg_config(prefix: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("varve").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let said = well("pkg-config", &command.output().expect("pkg-config runs"));
    said.split_whitespace().map(str::to_string).collect()
}

#[test]
fn what_is_installed_serves_programs_with_the_shared_and_with_the_static_library() {
    if !found("gcc") || !found("pkg-config") {
        return;
    }
    let scratch = Scratch::new("install");
    let prefix = scratch.0.join("prefix");
    let mut install = Command::new("bash");
    // As this test was built, into a folder of its own: cargo holds that of the tests.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("install");
    install.arg(here().join("install")).arg(&prefix).env("CARGO_ARGS", "--profile=dev").env("CARGO_TARGET_DIR", target);
    // It is linked, not measured.
    install.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
    well("install", &install.output().expect("bash runs"));
    let prefix = &prefix;
    assert_eq!(pkg_config(prefix, &["--modversion"]), [env!("CARGO_PKG_VERSION")]);

    let mut sizes = Vec::new();
    for library in ["libvarve_c.so", "libvarve_c.a"] {
        let program = scratch.0.join(library).with_extension("program");
        let mut gcc = Command::new("gcc");
        gcc.arg(here().join("examples/hello.c")).arg("-o").arg(&program);
        if library.ends_with(".so") {
            gcc.args(pkg_config(prefix, &["--cflags", "--libs"]));
        } else {
            // Beside the shared library a linker takes that one, unless it is told otherwise for this library alone.
            for flag in pkg_config(prefix, &["--static", "--cflags", "--libs"]) {
                match &flag[..] {
                    "-lvarve_c" => gcc.args(["-Wl,-Bstatic", "-lvarve_c", "-Wl,-Bdynamic"]),
                    flag => gcc.arg(flag),
                };
            }
        }
        well(library, &gcc.output().expect("gcc runs"));
        let run = |libraries: &Path| {
            let mut run = Command::new(&program);
            run.arg(scratch.0.join(library).with_extension("bank")).env("LD_LIBRARY_PATH", libraries);
            run.output().expect("it runs")
        };
        assert_eq!(well(library, &run(&prefix.join("lib"))), "alice has 10\n");
        // Only the program with the shared library needs it when it runs.
        assert_eq!(run(Path::new("/nowhere")).status.success(), library.ends_with(".a"), "{library}");
        sizes.push(std::fs::metadata(&program).expect("a program").len());
    }
    assert!(sizes[0] < sizes[1], "the programs have {sizes:?} bytes: the second one holds the library");
}
