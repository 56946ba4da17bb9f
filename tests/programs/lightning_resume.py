"""A Trainer that stops after an epoch, and another that goes on from its checkpoint."""

import logging
import sys
import warnings

import pytorch_lightning as lightning
import torch
import witness  # noqa: F401
from digests import digest
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

place = sys.argv[1]
warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
        )

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layers(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5),
        }


def trainer(epochs: int) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=place, filename="{epoch}", save_last=True)],
    )


lightning.seed_everything(0, verbose=False)
x = torch.randn(32, 8)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)

first = trainer(1)
first.fit(Model(), data)
second = trainer(3)
model = Model()
second.fit(model, data, ckpt_path=f"{place}/last.ckpt")
print(second.current_epoch, second.global_step, digest(model), digest(second.optimizers[0].state_dict()))
print(second.lr_scheduler_configs[0].scheduler.get_last_lr())

again = Model.load_from_checkpoint(f"{place}/last.ckpt")
print(again.hparams.width, digest(again))
