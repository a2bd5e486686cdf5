//! Host profiles as text: what is read, what is refused and how.

use varve_lab::host::HostProfile;
use varve_rt::Cost;

fn refused(text: &str) -> String {
    HostProfile::parse(text, "test.toml").expect_err("it is refused").to_string()
}

const SCALED: &str = "name = \"fast\"\ncores = 32\nlock_handoff_ns = 90.0\nscaled_from = \"vm-2core\"\nscale = 0.5\n";

#[test]
fn every_builtin_profile_is_complete_and_survives_being_written() {
    let mut names: Vec<_> = HostProfile::builtin_names().collect();
    for &name in &names {
        let host = HostProfile::builtin(name).unwrap();
        assert_eq!(host.name, name);
        assert!(!host.sources.is_empty(), "{name} says where its numbers come from");
        for &cost in Cost::ALL {
            assert!(host.costs.ns(cost) > 0.0, "{name}: {}", cost.name());
        }
        assert_eq!(HostProfile::parse(&host.to_toml(), "written").unwrap(), host);
        let config = host.config(7);
        assert_eq!((config.seed, config.cores), (7, host.cores));
        assert_eq!(config.costs, host.costs);
    }
    names.dedup();
    assert!(names.contains(&"vm-2core"));
}

#[test]
fn a_profile_can_be_another_one_scaled() {
    let base = HostProfile::builtin("vm-2core").unwrap();
    let fast = HostProfile::parse(&format!("{SCALED}[costs]\npage_access = 12.5\n"), "test.toml").unwrap();
    assert_eq!(fast.costs.ns(Cost::PageAccess), 12.5);
    for &cost in Cost::ALL.iter().filter(|&&c| c != Cost::PageAccess) {
        assert!((fast.costs.ns(cost) - base.costs.ns(cost) / 2.0).abs() <= 0.000_51, "{}", cost.name());
    }
}

#[test]
fn what_cannot_be_used_is_named_with_its_line_and_with_what_can() {
    assert_eq!(refused(&SCALED.replace("32", "0")), "test.toml, line 2: cores: 0: 1 to 4096 are accepted");
    let unknown = refused(&format!("{SCALED}[costs]\nlog_byte = 1\npage_acess = 12.5\n"));
    assert!(unknown.starts_with("test.toml, line 8: page_acess: no such cost; there are page_access, "), "{unknown}");
    let negative = refused(&format!("{SCALED}[costs]\nlog_byte = -1\n"));
    assert!(negative.starts_with("test.toml, line 7: log_byte: -1: "), "{negative}");
    assert!(refused(&SCALED.replace("0.5", "0.0")).contains("line 5: scale: 0: "));
    assert!(refused("name = \"x\"\ncores = 2\nlock_handoff_ns = nan\n").contains("line 3: lock_handoff_ns: NaN: "));
    let absent = refused("name = \"x\"\ncores = 2\nlock_handoff_ns = 1\n[costs]\nlog_byte = 1\n");
    assert!(absent.starts_with("test.toml, line 4: costs: [costs] has no page_access"), "{absent}");
    assert!(refused("name = \"x\"\ncores = 2\nfoo = 1\n").starts_with("test.toml, line 3: TOML: unknown field `foo`"));
    assert!(refused("name = \"x\"\ncores = \"two\"\n").contains("line 2: TOML: invalid type"));
    let other = refused(&SCALED.replace("vm-2core", "pdp-11"));
    assert!(other.contains("no such host profile; there are vm-2core"), "{other}");
    assert!(HostProfile::find("/no/such/file.toml").is_err());
}
