//! The array's part of a simulated database: its drives, and how extents are laid over them, drawn from the seed.

use super::plan::Plan;
use std::sync::Arc;
use varve::Faults;
use varve::array::{Array, Given, Layout, NewDrive, OpenHow};
use varve_device::Device;
use varve_rt::Rng;

const MIB: u64 = 1 << 20;

/// What a seed makes of the array.
#[derive(Clone, Debug)]
pub(crate) struct ArrayPlan {
    /// Bytes of each drive.
    sizes: Vec<u64>,
    extent: u64,
    layout: Layout,
}

impl ArrayPlan {
    /// Draws the array of a plan. The drives have room for the most that a database of a plan grows to.
    pub(crate) fn draw(plan: &Plan) -> ArrayPlan {
        let mut rng = Rng::from_seed(plan.seed ^ 0xa44a);
        let drives = rng.between(2, 4);
        let sizes: Vec<u64> = (0..drives).map(|_| rng.between(80, 160) * MIB).collect();
        let shares = sizes.iter().map(|_| rng.between(1, 5) as f64).collect();
        let layout = match rng.below(4) {
            0 => Layout::Proportional { shares },
            1 => Layout::Rodi { shares },
            _ => Layout::Stripe { unit: [64 << 10, 256 << 10, MIB, 2 * MIB][rng.below(4) as usize] },
        };
        ArrayPlan { sizes, extent: 2 * MIB, layout }
    }

    /// Name and bytes of each drive, the last one to spare.
    pub(crate) fn drives(&self) -> Vec<(String, u64)> {
        let spare = self.sizes.iter().max().expect("there are drives");
        let sizes = self.sizes.iter().chain([spare]);
        sizes.enumerate().map(|(i, bytes)| (format!("drive.{i}"), *bytes)).collect()
    }

    /// Makes the array on its drives, or finds it there.
    pub(crate) fn array(
        &self,
        drives: Vec<Arc<dyn Device>>,
        create: bool,
        faults: &Faults,
    ) -> varve::Result<Arc<Array>> {
        let array = if create {
            let new = |device| NewDrive { device, blank: false };
            let drives = drives.into_iter().take(self.sizes.len());
            let mut id = [0; 16];
            varve_rt::rng().fill_bytes(&mut id);
            Array::create(id, drives.map(new).collect(), self.extent, self.layout.clone())?
        } else {
            let given = |device: Arc<dyn Device>| Given { name: device.info().name.to_string(), device: Ok(device) };
            Array::open(drives.into_iter().map(given).collect(), OpenHow::Writing)?
        };
        array.set_faults(faults.clone());
        Ok(array)
    }
}
