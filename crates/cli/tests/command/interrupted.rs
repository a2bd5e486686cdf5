//! A creation that is killed at any moment is made by the same command again, whatever devices it is on.

use crate::support::{Scratch, ok, varve};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Kills creations on these devices, later and later, and runs each again.
fn killed(name: &str, devices: &dyn Fn(&Scratch) -> Vec<String>) {
    for moment in 0..24 {
        let place = Scratch::new(name);
        let (db, devices) = (place.at("db"), devices(&place));
        let mut args = vec!["create", &db, "--log-mb", "1"];
        args.extend(devices.iter().map(String::as_str));
        let mut child = Command::new(env!("CARGO_BIN_EXE_varve"))
            .args(&args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts");
        varve_rt::sleep(Duration::from_millis(4 * moment));
        child.kill().expect("ours");
        child.wait().expect("it ends");
        let again = varve(&args, "");
        let said = String::from_utf8_lossy(&again.stderr);
        match again.status.code() {
            Some(0) => {}
            // It was made in time.
            Some(6) => assert!(said.contains(&format!("{db} already holds a database")), "{moment}: {said}"),
            _ => panic!("{moment}: {said}"),
        }
        ok(&["put", &db, "k", "a", "1"], "");
        ok(&["check", &db], "");
    }
}

#[test]
fn on_drives() {
    killed("drives", &|place| {
        ["--drive", &place.at("a:16M"), "--drive", &place.at("b:16M"), "--extent", "2M"].map(String::from).into()
    });
}

#[test]
fn on_a_tier() {
    killed("tier", &|place| ["--slow", &place.at("slow"), "--fast", &place.at("fast:16M")].map(String::from).into());
}

#[test]
fn on_flash() {
    killed("flash", &|place| {
        let layout = place.file(
            "layout.toml",
            "profile = \"slc-emulator-16\"\n\
             geometry = { channels = 2, chips_per_channel = 2, blocks_per_plane = 24, pages_per_block = 32 }\n",
        );
        ["--flash", &format!("image:{}", place.at("chips")), "--layout", &layout].map(String::from).into()
    });
}
